"""The ledger's entries while the program runs: Saves and Writes of one storage on one clock."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from gradmend.capture.ledger import fields
from gradmend.capture.ledger.rolls import Roll
from gradmend.capture.memory.layouts import PLAIN, Layout, LayoutIndex, layout_of
from gradmend.capture.memory.undo import Record, UndoLog
from gradmend.capture.native.loading import compiled
from gradmend.capture.sites import Raw

if TYPE_CHECKING:
    from gradmend.capture.ledger.ledger import Ledger
    from gradmend.capture.ledger.scopes import Scope

# A storage that is written for ever beside a Save that lives for ever keeps its first and last Writes.
_MOST_WRITES = 8192
_MOST_WAITING, _MOST_DEAD = 32, 512  # Saves that died since the dead were last buried

_set_version = torch._C._autograd._unsafe_set_version_counter
next_number = torch._C._autograd._get_sequence_nr  # of the next node that this thread makes


@fields.grafted
class Entry(fields.Entry):
    """A Save: what an op kept for backward, and what we must know to tell whether it still stands.

    The handle is a detached alias: it shares memory and version counter with the saved tensor, and holds
    no graph. The graph owns the Entry; when the graph lets go, the Entry's death frees what it needed.
    """

    if compiled is not None:
        __slots__ = ()

    def __init__(self, handle: torch.Tensor, version: int, tick: int, raw: Raw, scope: Scope) -> None:
        self.handle = handle
        self.version = version
        self.tick = tick
        self.raw = raw
        self.scope = scope

    if compiled is None:

        def __del__(self) -> None:
            if self.roll is not None:
                self.roll.drop(self)
            timeline = self.timeline
            if timeline is not None:
                dead = timeline.ledger.dead
                dead.append((timeline, self.layout))
                # A storage that was written has memory waiting to be freed; else the next Write tidies up.
                hurry = timeline.counters and (len(dead) > _MOST_WAITING or len(dead) >= timeline.living())
                if hurry or len(dead) > _MOST_DEAD:
                    timeline.ledger.bury()

    def moved(self) -> bool:
        """PyTorch's own counter stepped since the Save: without us, backward would refuse."""
        return self.handle._version != self.version

    def uncredited(self) -> bool:
        """The counter stepped outside every Write we saw: something changed the tensor unseen."""
        if self.swaps:
            return False  # it counts for other memory now, and a fingerprint was taken of this
        if self.counter is None:
            return self.handle._version != self.version
        return self.handle._version - self.counter.credited != self.standing

    def settle(self, counter: Counter) -> None:
        self.counter = counter
        self.standing = self.version - counter.credited

    def forgive(self) -> None:
        """The steps so far are those of a Write we know, which the op made after it took this Save."""
        if self.counter is not None:
            self.standing = self.handle._version - self.counter.credited


@fields.grafted
class Written(fields.Written):
    """A Write: this op changed this region of this storage, from this line."""

    __slots__ = ()

    def __init__(self, tick: int, op: str, raw: Raw, layout: Layout, how: str = "data") -> None:
        self.tick = tick
        self.op = op
        self.raw = raw
        self.layout = layout
        self.how = how
        self.moved = False
        self.kept = 0


@fields.grafted
class Counter(fields.Counter):
    """A version counter, known by one tensor that carries it, and the steps of it we can account for.

    A storage may have several: `.data` makes a fresh one, `w.data = x` lets two share a storage.
    """

    __slots__ = ()

    def __init__(self, carrier: torch.Tensor) -> None:
        self.carrier = carrier
        self.base = None
        self.credited = 0
        self.seen = carrier._version

    def carried_by(self, t: torch.Tensor) -> bool:
        version = self.carrier._version
        if t._version != version:
            return False
        # PyTorch does not tell which counter a tensor has; a step on one that shows on the other does.
        _set_version((self.carrier,), (version + 1,))
        try:
            return t._version == version + 1
        finally:
            _set_version((self.carrier,), (version,))

    def credit(self, before: int) -> bool:
        now = self.carrier._version
        step = now - max(before, self.seen)
        if step > 0:
            self.credited += step
            self.seen = now
        return now > before


class _NoUndo(UndoLog):
    __slots__ = ()

    def add(self, record: Record) -> None:
        raise AssertionError("a Record for a storage that was not settled")


# What a storage has until it is first written: most never are.
_NO_INDEX, _NO_UNDO = LayoutIndex(), _NoUndo()


class Timeline(fields.Timeline):
    """All that is known of one storage while a Save of it lives. It holds no memory of the storage itself."""

    __slots__ = ()

    def __init__(self, key: int, ledger: Ledger) -> None:
        self.key = key
        self.ledger = ledger
        self.live, self.fresh = Roll(), Roll()
        self.index = _NO_INDEX
        self.counters = []
        self.undo = _NO_UNDO
        self.log = []
        self.last = -1
        self.newest = 0
        self.gone = []
        self.deaths = 0

    def enter(self, entry: Entry) -> None:
        entry.timeline = self
        self.fresh.add(entry)
        if entry.tick > self.newest:
            self.newest = entry.tick

    def unsettled(self) -> bool:
        return bool(self.fresh or self.gone) or self.undo is _NO_UNDO

    def open(self) -> None:
        """The first Write comes."""
        self.index, self.undo = LayoutIndex(), UndoLog()

    def settle(self) -> None:
        """Index the Saves made since the last Write, and find the version counter of each."""
        if compiled is not None:
            return compiled.settle_timeline(self)
        if self.undo is _NO_UNDO:
            self.open()
        while self.gone:
            self.index.remove(self.gone.pop())
        for entry in self.fresh:
            if entry.layout is None:
                entry.layout = layout_of(entry.handle)
                self.index.add(entry.layout)
            counter = self._counter_of(entry)
            entry.settle(counter)
            self.live.add(entry)

    def _counter_of(self, entry: Entry) -> Counter:
        base = entry.original() if entry.original else None
        if type(base) not in PLAIN:
            base = None  # of a class that would see us look
        elif base is not None and base._base is not None:
            base = base._base
        for counter in self.counters:
            if base is not None and counter.base is not None and counter.base() is base:
                return counter
        for counter in self.counters:
            if counter.carried_by(entry.handle):
                break
        else:
            counter = Counter(entry.handle)
            self.counters.append(counter)
        if base is not None:
            counter.base = weakref.ref(base)
        return counter

    def living(self) -> int:
        return len(self.live) + len(self.fresh)

    def entries(self) -> list[Entry]:
        return [*self.live, *self.fresh]

    def wrote(self, written: Written) -> None:
        self.last = written.tick
        self.log.append(written)
        if len(self.log) > _MOST_WRITES:
            del self.log[_MOST_WRITES // 4 : _MOST_WRITES // 2]

    def forget(self, layout: Layout | None) -> None:
        """A Save died: drop what only it needed, now and then all at once."""
        if layout is not None:
            self.gone.append(layout)
        self.deaths += 1
        living = self.living()
        if living and self.deaths > 16 + 2 * living and self.undo.large():
            self.tidy()

    def tidy(self) -> None:
        self.deaths = 0
        ticks = sorted(entry.tick for entry in self.entries())
        self.undo.prune(ticks)
        if ticks:
            self.log = [w for w in self.log if w.tick > ticks[0]]


if compiled is not None:
    _Base = torch._C.TensorBase
    compiled.know_counters(_set_version, _Base.__dict__["_base"], Counter)
    compiled.know_timelines(_Base.__dict__["is_nested"], _NO_UNDO)
