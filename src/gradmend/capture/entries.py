"""The ledger's entries while the program runs: Saves and Writes of one storage on one clock."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from gradmend.capture.regions import Layout, LayoutIndex, layout_of
from gradmend.capture.sites import Raw
from gradmend.heal.undo import Record, UndoLog

if TYPE_CHECKING:
    from gradmend.capture.ledger import Scope

# The storage, tick and layout of a Save that is gone.
Death = tuple[int, int, Layout | None]

# A storage that is written for ever beside a Save that lives for ever keeps its first and last Writes.
_MOST_WRITES = 8192
_MOST_WAITING = 32  # Saves that died since the dead were last buried


class Entry:
    """A Save: what an op kept for backward, and what we must know to tell whether it still stands.

    The handle is a detached alias: it shares memory and version counter with the saved tensor, and holds
    no graph. The graph owns the Entry; when the graph lets go, the Entry's death frees what it needed.
    """

    # Rare attributes are the class's until they are set: a Save is made for every tensor an op keeps.
    timeline: Timeline | None = None
    layout: Layout | None = None
    original: weakref.ref[torch.Tensor] | None = None  # the very tensor that was packed
    unchecked = False  # below hooks of the program's own, PyTorch does not look at the counter
    swaps: tuple[tuple[Written, torch.Tensor], ...] = ()  # Writes that put other memory under it, and that
    print: int | None = None  # fingerprint of the saved bytes
    escape: Raw | None = None  # where the memory was handed out beyond torch
    _counter: Counter | None = None
    _standing = 0

    def __init__(self, handle: torch.Tensor, version: int, tick: int, raw: Raw, scope: Scope) -> None:
        self.handle = handle
        self.version = version
        self.tick = tick
        self.raw = raw
        self.scope = scope

    def __del__(self) -> None:
        timeline = self.timeline
        if timeline is not None:
            dead = timeline.dead
            dead.append((timeline.key, self.tick, self.layout))
            # A storage that was written has memory waiting to be freed; else the next Write tidies up.
            if timeline.counters and (len(dead) > _MOST_WAITING or len(dead) >= len(timeline.live)):
                timeline.bury()

    def moved(self) -> bool:
        """PyTorch's own counter stepped since the Save: without us, backward would refuse."""
        return self.handle._version != self.version

    def uncredited(self) -> bool:
        """The counter stepped outside every Write we saw: something changed the tensor unseen."""
        counter = self._counter
        if counter is None:
            return self.moved()
        return self.handle._version - counter.credited != self._standing

    def settle(self, counter: Counter) -> None:
        self._counter = counter
        self._standing = self.version - counter.credited

    def forgive(self) -> None:
        """The steps so far are those of a Write we know, which the op made after it took this Save."""
        if self._counter is not None:
            self._standing = self.handle._version - self._counter.credited


class Written:
    """A Write: this op changed this region of this storage, from this line."""

    __slots__ = ("how", "kept", "layout", "moved", "op", "raw", "tick")

    def __init__(self, tick: int, op: str, raw: Raw, layout: Layout, how: str = "data") -> None:
        self.tick = tick
        self.op = op
        self.raw = raw
        self.layout = layout
        self.how = how
        self.moved = False  # some version counter of the storage stepped
        self.kept = 0  # bytes kept in the undo log


class Counter:
    """A version counter, known by one tensor that carries it, and the steps of it we can account for.

    A storage may have several: `.data` makes a fresh one, `w.data = x` lets two share a storage.
    """

    __slots__ = ("carrier", "credited", "seen")

    def __init__(self, carrier: torch.Tensor) -> None:
        self.carrier = carrier
        self.credited = 0
        self.seen = carrier._version

    def carried_by(self, t: torch.Tensor) -> bool:
        version = self.carrier._version
        if t._version != version:
            return False
        # PyTorch does not tell which counter a tensor has; a step on one that shows on the other does.
        set_version = torch._C._autograd._unsafe_set_version_counter
        set_version((self.carrier,), (version + 1,))
        try:
            return t._version == version + 1
        finally:
            set_version((self.carrier,), (version,))

    def credit(self, before: int) -> bool:
        now = self.carrier._version
        step = now - max(before, self.seen)
        if step > 0:
            self.credited += step
            self.seen = now
        return now > before


class _NoUndo(UndoLog):
    def add(self, record: Record) -> None:
        raise AssertionError("a Record for a storage that was not settled")


# What a storage has until it is first written: most never are.
_NO_INDEX, _NO_UNDO = LayoutIndex(), _NoUndo()


class Timeline:
    """All that is known of one storage while a Save of it lives. It holds no memory of the storage itself."""

    __slots__ = (
        "bury", "counters", "dead", "deaths", "fresh", "gone", "index", "key", "last", "live", "log", "newest", "undo",
    )  # fmt: skip

    def __init__(self, key: int, dead: deque[Death], bury: Callable[[], None]) -> None:
        self.key = key
        self.dead = dead
        self.bury = bury
        self.live: dict[int, weakref.ref[Entry]] = {}
        self.fresh: list[weakref.ref[Entry]] = []  # not yet indexed: most storages are never written
        self.index = _NO_INDEX
        self.counters: list[Counter] = []
        self.undo: UndoLog = _NO_UNDO
        self.log: list[Written] = []
        self.last = -1  # the tick of the last Write
        self.newest = 0  # the tick of the last Save
        self.gone: list[Layout] = []  # of dead Saves, in the index still
        self.deaths = 0

    def enter(self, entry: Entry, ref: weakref.ref[Entry]) -> None:
        entry.timeline = self
        self.live[entry.tick] = ref
        self.fresh.append(ref)
        if entry.tick > self.newest:
            self.newest = entry.tick

    def unsettled(self) -> bool:
        return bool(self.fresh or self.gone) or self.undo is _NO_UNDO

    def settle(self) -> None:
        """Index the Saves made since the last Write, and find the version counter of each."""
        if self.undo is _NO_UNDO:
            self.index, self.undo = LayoutIndex(), UndoLog()
        while self.gone:
            self.index.remove(self.gone.pop())
        for ref in self.fresh:
            entry = ref()
            if entry is None:
                continue
            handle = entry.handle
            if entry.layout is None:
                entry.layout = layout_of(handle)
                self.index.add(entry.layout)
            for counter in self.counters:
                if counter.carried_by(handle):
                    break
            else:
                counter = Counter(handle)
                self.counters.append(counter)
            entry.settle(counter)
        self.fresh.clear()

    def entries(self) -> list[Entry]:
        return [e for ref in list(self.live.values()) if (e := ref()) is not None]

    def wrote(self, written: Written) -> None:
        self.last = written.tick
        self.log.append(written)
        if len(self.log) > _MOST_WRITES:
            del self.log[_MOST_WRITES // 4 : _MOST_WRITES // 2]

    def forget(self, tick: int, layout: Layout | None) -> None:
        """A Save died: drop what only it needed, now and then all at once."""
        self.live.pop(tick, None)
        if layout is not None:
            self.gone.append(layout)
        self.deaths += 1
        if len(self.fresh) > 64 + 2 * len(self.live):
            self.fresh = [ref for ref in self.fresh if ref() is not None]
        if self.undo.records and self.deaths > 16 + len(self.live):
            self.tidy()

    def tidy(self) -> None:
        self.deaths = 0
        self.undo.prune(self.live)
        oldest = min(self.live, default=None)
        if oldest is not None:
            self.log = [w for w in self.log if w.tick > oldest]
