"""What the ledger holds while the program runs: the Saves and Writes of each storage on one clock."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from gradmend.capture import edge
from gradmend.capture.ledger.lock import Lock
from gradmend.capture.memory.layouts import PLAIN, Layout, LayoutIndex, layout_of
from gradmend.capture.memory.undo import Record, Ticked, UndoLog, first_after
from gradmend.capture.sites import Raw

try:
    import cython
except ImportError:
    from gradmend.capture.native import uncompiled as cython

if TYPE_CHECKING:
    from gradmend.capture.ledger.ledger import Ledger
    from gradmend.capture.ledger.scopes import Scope

# A storage that is written for ever beside a Save that lives for ever keeps its first and last Writes.
_MOST_WRITES = 8192
_MOST_ENTERED = 64

_ref: Any = edge.ref  # a weak reference
_version = edge.version
_is_neg = torch._C.TensorBase.is_neg
_set_version = torch._C._autograd._unsafe_set_version_counter
_base_of: Any = torch._C.TensorBase.__dict__["_base"].__get__
next_number = torch._C._autograd._get_sequence_nr  # of the next node that this thread makes


@cython.no_gc
@cython.cclass
class Save:
    """What an op kept for backward, and what we must know to tell whether it still stands.

    The handle is a detached alias: it shares memory and version counter with the saved tensor, and holds
    no graph. The graph owns the Save; when the graph lets go, its death frees what only it needed.
    """

    __slots__ = (
        "__weakref__", "counter", "detached", "escape", "handle", "layout", "number", "original", "print", "raw", "ref", "roll", "scope",
        "standing", "swaps", "tick", "timeline", "unchecked", "version",
    )  # fmt: skip

    handle: torch.Tensor
    version: int
    tick: int
    raw: Raw
    scope: Scope
    number: int  # of the newest node when it was made
    timeline: Timeline | None
    layout: Layout | None
    original: weakref.ref[torch.Tensor] | None  # the very tensor that was packed
    ref: weakref.ref[Save] | None  # to itself
    detached: bool  # by detach_(), which PyTorch refuses when backward asks for it
    unchecked: bool  # below hooks of the program's own, PyTorch does not look at the counter
    swaps: tuple[tuple[Write, torch.Tensor], ...]  # Writes that put other memory under it, and that memory
    print: int | None  # fingerprint of the saved bytes
    escape: Raw | None  # where the memory was handed out beyond torch
    counter: Counter | None
    roll: Roll | None
    standing: int  # its version without the steps of its counter that were accounted for

    def __del__(self) -> None:
        # Held by names of our own: compiled, a call holds nothing, and a Roll may go with its last Save.
        roll, timeline = self.roll, self.timeline
        if roll is not None:
            roll.drop(self)
        if timeline is not None:
            timeline.died(self.layout)

    def untouched(self) -> bool:
        """Nothing has happened to it: its handle is what backward gets."""
        timeline = self.timeline
        return (
            (timeline is None or timeline.last < self.tick)
            and _version(self.handle) == self.version
            and self.print is None
            and not self.swaps
        )

    def moved(self) -> bool:
        """PyTorch's own counter stepped since the Save: without us, backward would refuse."""
        return _version(self.handle) != self.version

    def uncredited(self) -> bool:
        """The counter stepped outside every Write we saw: something changed the tensor unseen."""
        if self.swaps:
            return False  # it counts for other memory now, and a fingerprint was taken of this
        if self.counter is None:
            return _version(self.handle) != self.version
        return _version(self.handle) - self.counter.credited != self.standing

    def settle(self, counter: Counter) -> None:
        self.counter = counter
        self.standing = self.version - counter.credited

    def forgive(self) -> None:
        """The steps so far are those of a Write we know, which the op made after it took this Save."""
        if self.counter is not None:
            self.standing = self.handle._version - self.counter.credited


@cython.no_gc
@cython.cclass
class Write(Ticked):
    """This op changed this region of this storage, from this line."""

    __slots__ = ("counted", "how", "kept", "layout", "moved", "op", "raw")

    op: str
    raw: Raw
    layout: Layout
    how: str
    moved: bool  # some version counter of the storage stepped
    kept: int  # bytes kept in the undo log
    counted: bool  # among those that healed something: they may heal several Saves


# Compiled, a class that is called packs its arguments into a tuple of objects; these do not.
def made_save(
    handle: torch.Tensor, version: int, tick: int, raw: Raw, scope: Scope, kind: type[Save] | None = None
) -> Save:
    save: Save = Save.__new__(Save) if kind is None else kind.__new__(kind)
    save.handle = handle
    save.version = version
    save.tick = tick
    save.raw = raw
    save.scope = scope
    save.number = save.standing = 0
    save.timeline = save.layout = save.original = save.ref = None
    save.print = save.escape = save.counter = save.roll = None
    save.unchecked = save.detached = False
    save.swaps = ()
    return save


def made_write(tick: int, op: str, raw: Raw, layout: Layout, how: str = "data") -> Write:
    write: Write = Write.__new__(Write)
    write.tick = tick
    write.op = op
    write.raw = raw
    write.layout = layout
    write.how = how
    write.moved = write.counted = False
    write.kept = 0
    return write


def same_counter(a: torch.Tensor, b: torch.Tensor) -> bool:
    """PyTorch does not tell which version counter a tensor has; a step on one that shows on the other does."""
    version = a._version
    if b._version != version:
        return False
    _set_version((a,), (version + 1,))
    try:
        return b._version == version + 1
    finally:
        _set_version((a,), (version,))


@cython.no_gc
@cython.cclass
class Counter:
    """A version counter, known by one tensor that carries it, and the steps of it we can account for.

    A storage may have several: `.data` makes a fresh one, `w.data = x` lets two share a storage.
    """

    __slots__ = ("base", "carrier", "credited", "seen")

    def __init__(self, carrier: torch.Tensor) -> None:
        self.carrier = carrier
        # All views of it share the counter, as it does itself.
        self.base: weakref.ref[torch.Tensor] | None = None
        self.credited = 0
        self.seen = carrier._version

    def carried_by(self, t: torch.Tensor) -> bool:
        return same_counter(self.carrier, t)

    def credit(self, before: int) -> bool:
        now = _version(self.carrier)
        step = now - max(before, self.seen)
        if step > 0:
            self.credited += step
            self.seen = now
        return now > before


@cython.no_gc
@cython.cclass
class Roll:
    """Which Saves live, in the order they came. A Save is on one at a time, and drops out when it dies."""

    __slots__ = ("_living", "_refs")

    def __init__(self) -> None:
        self._refs: list[weakref.ref[Save]] = []  # of some that died or left, too
        self._living = 0

    def __len__(self) -> int:
        return self._living

    def __iter__(self) -> Iterator[Save]:
        """Those that live now: the roll may change meanwhile."""
        return iter(self.living())

    def living(self) -> list[Save]:
        return [save for ref in self._refs if (save := ref()) is not None and save.roll is self]

    def add(self, save: Save) -> weakref.ref[Save]:
        """Put a Save at its end, and take it off the roll where it was. None comes back."""
        if save.roll is not None:
            save.roll.drop(save)
        refs = self._refs
        if len(refs) > 16 + 2 * self._living:
            refs = self._refs = [ref for ref in refs if (one := ref()) is not None and one.roll is self]
        if save.ref is None:
            save.ref = _ref(save)
        save.roll = self
        self._living += 1
        refs.append(save.ref)
        return save.ref

    def drop(self, save: Save) -> None:
        save.roll = None
        self._living -= 1
        if not self._living:
            self._refs.clear()


class _NoUndo(UndoLog):
    __slots__ = ()

    def add(self, record: Record) -> None:
        raise AssertionError("a Record for a storage that was not settled")


# What a storage has until it is first written: most never are. Nothing is ever put into these.
_NO_INDEX, _NO_UNDO = LayoutIndex(), _NoUndo()
_NONE: list[Any] = []


@cython.no_gc
@cython.cclass
class Timeline:
    """All that is known of one storage while a Save of it lives. It holds no memory of the storage itself."""

    __slots__ = (
        "counters", "dead", "deaths", "entered", "gone", "index", "key", "last", "ledger", "live", "lock", "log", "newest", "undo",
    )  # fmt: skip

    def __init__(self, key: int, ledger: Ledger) -> None:
        self.key = key
        self.ledger = ledger
        self.dead = ledger.dead
        self.lock: Lock = ledger.lock
        self.live = Roll()
        # Those that no Write has followed: they are not indexed, and most never are.
        self.entered: list[weakref.ref[Save]] = []
        self.index = _NO_INDEX
        self.undo: UndoLog = _NO_UNDO
        self.counters: list[Counter] = _NONE
        self.log: list[Write] = _NONE
        self.last = -1  # the tick of the last Write
        self.newest = 0  # the tick of the last Save
        self.gone: list[Layout] = _NONE  # of dead Saves, in the index still
        self.deaths = 0

    def enter(self, save: Save) -> None:
        save.timeline = self
        self.entered.append(self.live.add(save))
        if len(self.entered) > _MOST_ENTERED + 2 * len(self.live):  # most are dead
            self.entered = [ref for ref in self.entered if ref() is not None]
        if save.tick > self.newest:
            self.newest = save.tick

    def open(self) -> None:
        """Its first Write comes, or may."""
        if self.undo is _NO_UNDO:
            self.index, self.undo = LayoutIndex(), UndoLog()
            self.counters, self.log, self.gone = [], [], []

    def settle(self) -> None:
        """Index the Saves made since the last Write, and find the version counter of each."""
        self.open()
        while self.gone:
            self.index.remove(self.gone.pop())
        if not self.entered:
            return
        for ref in self.entered:
            save = ref()
            if save is not None:
                save.layout = layout_of(save.handle)
                self.index.add(save.layout)
                save.settle(self._counter_of(save))
        self.entered.clear()

    def _counter_of(self, save: Save) -> Counter:
        base = None if save.original is None else save.original()
        if type(base) not in PLAIN:
            base = None  # of a class that would see us look
        elif (root := _base_of(base)) is not None:
            base = root
        for counter in self.counters:
            if base is not None and counter.base is not None and counter.base() is base:
                return counter
        for counter in self.counters:
            if counter.carried_by(save.handle):
                break
        else:
            counter = Counter(save.handle)
            self.counters.append(counter)
        if base is not None:
            counter.base = _ref(base)
        return counter

    def saves(self) -> list[Save]:
        return self.live.living()

    def lives(self) -> int:
        """How many of its Saves live."""
        return len(self.live)

    def exact(self, save: Save) -> Record | None:
        """The one Record that holds the whole saved value, where that is so plain that a look tells."""
        layout = save.layout
        if layout is None or (layout.complex and save.handle.is_conj()) or _is_neg(save.handle):
            return None
        self.lock.take()
        try:
            return self.undo.exact(layout, save.tick)
        finally:
            self.lock.give()

    def wrote(self, write: Write) -> None:
        if write.tick < self.last:
            # Others were made inside it: by a callback, or by a mode that it was handed to.
            self.log.insert(first_after(self.log, write.tick), write)
        else:
            self.last = write.tick
            self.log.append(write)
        if len(self.log) > _MOST_WRITES:
            del self.log[_MOST_WRITES // 4 : _MOST_WRITES // 2]

    def died(self, layout: Layout | None) -> None:
        """One of its Saves died: the ledger buries it when it can."""
        dead = self.dead
        dead.append((self, layout))
        # A storage that was written has memory waiting to be freed; else the next Write tidies up.
        waiting = len(dead)
        # Plain numbers: at Python's end, the names of a module are gone before the last Save is.
        hurry = len(self.counters) > 0 and (waiting > 32 or waiting >= self.lives())
        if hurry or waiting > 512:
            self.ledger.bury()

    def forget(self, layout: Layout | None) -> None:
        """A Save died: drop what only it needed, now and then all at once."""
        if layout is not None:
            self.gone.append(layout)
        self.deaths += 1
        living = self.lives()
        if living and self.deaths > 16 + 2 * living and self.undo.large():
            self.tidy()

    def tidy(self) -> None:
        self.deaths = 0
        ticks = sorted([save.tick for save in self.saves()])
        self.undo.prune(ticks)
        if ticks:
            self.log = [w for w in self.log if w.tick > ticks[0]]
