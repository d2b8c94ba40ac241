"""The undo log of one storage: old bytes of what was overwritten, and the way back to any earlier tick.

A Record holds the bytes of a region as they were just before a Write. The value of a region at a tick is the
memory as it is now with every newer Record laid over it, newest first.

Only TensorBase's own methods are used here: the names on torch.Tensor may be tapped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch._C import TensorBase as Base

from gradmend.capture import edge
from gradmend.capture.memory.layouts import Layout, LayoutIndex, has_values, overlap

try:
    import cython
except ImportError:
    from gradmend.capture.native import uncompiled as cython

if TYPE_CHECKING:
    from gradmend.capture.ledger.entries import Write

# Past this many distinct regions to lay over each other, one shadow that moves back in time is cheaper.
_FEW = 24
_FEW_BYTES, _FEW_RECORDS = 1 << 16, 1024
_MOST_BYTES = 1 << 14  # kept as bytes, by one copy; more is torch's to copy, on all its threads
_from, _new, _new_like = torch.frombuffer, torch.empty_strided, torch.empty_like  # before they are tapped
_copy_out, _fill = edge.copy_out, edge.fill
_CPU = torch.device("cpu")
_ALIGN = 16  # the largest item size, so that every dtype stays aligned in a shadow


class Elements:
    """Single elements of a view: how to read them out of it and how to put them back."""

    __slots__ = ("read", "write")

    def __init__(
        self,
        read: Callable[[torch.Tensor], torch.Tensor],
        write: Callable[[torch.Tensor, torch.Tensor], object],
    ) -> None:
        self.read = read
        self.write = write


@cython.no_gc
@cython.cclass
class Ticked:
    """What stands on the ledger's clock: a Record, a Write."""

    __slots__ = ("tick",)

    tick: int


@cython.no_gc
@cython.cclass
class Record(Ticked):
    """The bytes of a region before a Write. `old` is the raw bytes of a small dense region, a tensor of the region's shape
    (strides too where it is dense; raw bytes where it is expanded), or its single elements."""

    __slots__ = ("elements", "layout", "nbytes", "old", "write")

    write: Write
    layout: Layout
    old: torch.Tensor | bytes
    elements: Elements | None
    nbytes: int

    def held(self) -> torch.Tensor:
        """What it keeps, as a tensor."""
        if isinstance(self.old, bytes):
            # A copy of torch's own: memory that Python owns is taken for handed out.
            kept = (
                _from(bytearray(self.old), dtype=torch.uint8)
                if self.old
                else torch.empty(0, dtype=torch.uint8)
            )
            self.old = Base.clone(kept)
        return self.old

    def whole(self, like: torch.Tensor | None = None) -> torch.Tensor:
        """The region itself, only to be read. `like` is a tensor over it, where one is at hand."""
        layout = self.layout
        if isinstance(self.old, bytes) and not layout.repeats:
            if like is None:
                value = _new(layout.shape, layout.strides, dtype=layout.dtype, device=_CPU)
            else:
                value = _new_like(like)
            if _fill(value, self.old):
                return value
        old = self.held()
        if old.shape == layout.shape and old.dtype == layout.dtype:
            return old
        return layout.shifted(-layout.lo).over(Base.untyped_storage(old))

    def bytes(self, lo: int, hi: int) -> torch.Tensor:
        """Some of the bytes of a dense region, by their place in the storage."""
        return _bytes(Base.untyped_storage(self.held()), lo - self.layout.lo, hi - self.layout.lo)


def _made(
    write: Write, layout: Layout, old: torch.Tensor | bytes, elements: Elements | None = None
) -> Record:
    record: Record = Record.__new__(Record)
    record.tick = write.tick
    record.write = write
    record.layout = layout
    record.old = old
    record.elements = elements
    record.nbytes = len(old) if isinstance(old, bytes) else old.nbytes
    return record


def take(
    t: torch.Tensor,
    storage: torch.UntypedStorage,
    write: Write,
    layout: Layout,
    elements: Elements | None = None,
    view: torch.Tensor | None = None,
) -> Record:
    """Keep the bytes of a region as they are now. `t` is what is written, `view` a tensor over the region where there is one."""
    if elements is not None and not layout.repeats:  # PyTorch would refuse to write them back
        try:
            return _made(write, layout, elements.read(layout.over(storage)), elements)
        except (IndexError, RuntimeError):
            pass  # an index out of range, a mask that does not fit: PyTorch itself will say so
    if layout.dense and layout.hi - layout.lo <= _MOST_BYTES:
        old = _copy_out(t, storage, layout.lo, layout.hi)
        if old is not None:
            return _made(write, layout, old)
    if layout.repeats:
        if layout.dense:
            return _made(write, layout, Base.clone(_bytes(storage, layout.lo, layout.hi)))
        layout, view = _once(layout), None
    return _made(write, layout, Base.clone(layout.over(storage) if view is None else view))


def _once(layout: Layout) -> Layout:
    """Without the repeats of an expanded dimension, which PyTorch refuses to write back."""
    shape = tuple(n if stride else min(n, 1) for n, stride in zip(layout.shape, layout.strides, strict=True))
    return Layout(layout.lo, layout.hi, layout.dense, layout.offset, shape, layout.strides, layout.dtype)


def _bytes(storage: torch.UntypedStorage, lo: int, hi: int) -> torch.Tensor:
    return Base.set_(torch.empty(0, dtype=torch.uint8, device=storage.device), storage, lo, (hi - lo,), (1,))


class Shadow:
    """A copy of the bytes [lo, hi) of a storage, as they were at a tick that only moves back."""

    __slots__ = ("_base", "_buffer", "_hi", "_storage", "tick")

    def __init__(self, storage: torch.UntypedStorage, lo: int, hi: int, tick: int) -> None:
        self._base = lo - lo % _ALIGN
        self._hi = hi
        self._buffer = torch.empty(hi - self._base, dtype=torch.uint8, device=storage.device)
        self._storage = Base.untyped_storage(self._buffer)
        # The storage may have shrunk since the Save: then the Records hold what is gone.
        there = min(hi, storage.nbytes())
        if there > self._base:
            now = _bytes(storage, self._base, there)
            Base.copy_(_bytes(self._storage, 0, there - self._base), now)
        self.tick = tick

    def lay(self, record: Record) -> None:
        layout = record.layout
        if record.elements is not None:
            record.elements.write(layout.shifted(-self._base).over(self._storage), record.held())
        elif layout.dense:
            lo, hi = max(layout.lo, self._base), min(layout.hi, self._hi)
            if lo < hi:
                Base.copy_(_bytes(self._storage, lo - self._base, hi - self._base), record.bytes(lo, hi))
        else:
            Base.copy_(layout.shifted(-self._base).over(self._storage), record.held())
        self.tick = record.tick - 1

    def view(self, layout: Layout) -> torch.Tensor:
        return layout.shifted(-self._base).over(self._storage)


def _tick(record: Record) -> int:
    return record.tick


def first_after(entered: Sequence[Ticked], tick: int) -> int:
    """The place of the first after `tick`, among Records or Writes in the order of their ticks."""
    lo, hi = 0, len(entered)
    while lo < hi:
        middle = (lo + hi) // 2
        one = entered[middle]
        if one.tick > tick:
            hi = middle
        else:
            lo = middle + 1
    return lo


def _within(inner: Layout, outer: Layout) -> bool:
    return outer.lo <= inner.lo and inner.hi <= outer.hi and (inner.lo - outer.lo) % inner.dtype.itemsize == 0


@cython.no_gc
@cython.cclass
class UndoLog:
    """Every Record of one storage that a live Save may need."""

    __slots__ = ("_filed", "_index", "_indexed", "_series", "_shadow", "nbytes", "records")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._empty()

    def _empty(self) -> None:
        self.records.clear()
        self.nbytes = 0
        # These two are seldom asked for.
        self._series: dict[Layout, list[Record]] | None = None  # of the first so many Records, oldest first
        self._filed = 0
        self._index: LayoutIndex | None = None  # of the first so many regions of the series
        self._indexed = 0
        self._shadow: Shadow | None = None

    def add(self, record: Record) -> None:
        self.records.append(record)
        self.nbytes += record.nbytes

    def _by_region(self) -> dict[Layout, list[Record]]:
        """All Records, those of each region oldest first. Most are never asked for in this way."""
        if self._series is None:
            self._series = {}
        for record in islice(self.records, self._filed, None):
            self._series.setdefault(record.layout, []).append(record)
        self._filed = len(self.records)
        return self._series

    def _regions(self) -> LayoutIndex:
        """All regions of the Records, to be found by bytes."""
        series = self._by_region()
        if self._index is None:
            self._index = LayoutIndex()
        for layout in islice(series, self._indexed, None):
            self._index.add(layout)
        self._indexed = len(series)
        return self._index

    def _after(self, tick: int) -> int:
        """The place of the first Record after `tick`."""
        return first_after(self.records, tick)

    def large(self) -> bool:
        """Whether dropping Records that nobody needs is worth a look at all of them."""
        return self.nbytes > _FEW_BYTES or len(self.records) > _FEW_RECORDS

    def retick(self, old: int, new: int) -> None:
        """The newest Records turn out to be of a later Write than was thought."""
        for record in self.records[self._after(old - 1) :]:
            record.tick = new

    def holds(self, write: Write) -> bool:
        """Whether all that this Write, the newest one, changed was kept before it."""
        for record in reversed(self.records):
            if record.tick < write.tick:
                break
            if record.write is write and record.layout == write.layout:
                return True
        return False

    def oldest_meeting(self, layout: Layout, tick: int) -> Record | None:
        """The first Record after `tick` that meets the region, if it is quickly found."""
        exact = self.exact(layout, tick)
        if exact is not None:
            return exact
        if len(self._by_region()) == 1:
            at = self._after(tick)
            return self.records[at] if at < len(self.records) else None
        found = []
        for count, met in enumerate(self._regions().meeting(layout)):
            series = self._by_region()[met]
            at = first_after(series, tick)
            if at < len(series):
                found.append(series[at])
            if count == _FEW:
                break
        return min(found, key=_tick, default=None)

    def hides(self, layout: Layout, newest: int) -> bool:
        """Whether a Record of this very region, made since the newest Save, leaves nothing for another to serve."""
        records = self.records
        if not records or records[-1].tick <= newest:
            return False
        for record in reversed(self._by_region().get(layout, ())):
            if record.tick <= newest:
                return False
            if record.elements is None:
                return True
        return False

    def exact(self, layout: Layout, tick: int) -> Record | None:
        """The very next Record after `tick`, when it is of this whole region: then it is all there is to know."""
        at = self._after(tick)
        if at < len(self.records):
            record = self.records[at]
            if record.elements is None and (record.layout is layout or record.layout == layout):
                return record
        return None

    def value(
        self, storage: torch.UntypedStorage, layout: Layout, tick: int, now: int
    ) -> torch.Tensor | None:
        """The region as it was at `tick`, not to be written to; None when no newer Record meets it."""
        newer = len(self.records) - self._after(tick)
        if not newer:
            return None
        first = self.records[-newer]
        if first.elements is None and (first.layout is layout or first.layout == layout):
            return first.whole()
        if len(self._by_region()) == 1:  # a whole tensor written again and again
            needed = self._newer(self.records[-1].layout, tick)
            if not overlap(self.records[-1].layout, layout):
                return None
        elif newer <= _FEW:
            needed = [r for r in self.records[-newer:] if overlap(r.layout, layout)]
        elif 2 * (layout.hi - layout.lo) > (index := self._regions()).hi - index.lo:
            return self._by_shadow(storage, layout, tick, now)
        else:
            needed = []
            for met in index.meeting(layout):
                needed += self._newer(met, tick)
                if len(needed) > _FEW:
                    return self._by_shadow(storage, layout, tick, now)
        if not needed:
            return None
        needed.sort(key=_tick)
        oldest = needed[0]
        if oldest.elements is None and oldest.layout.dense and _within(layout, oldest.layout):
            # It hides every newer one, and nobody writes to what it holds: no copy.
            return layout.shifted(-oldest.layout.lo).over(Base.untyped_storage(oldest.held()))
        # A strided or elementwise Record is laid whole, so the copy must hold all of it.
        lo, hi = layout.lo, layout.hi
        for record in needed:
            if record.elements is not None or not record.layout.dense:
                lo, hi = min(lo, record.layout.lo), max(hi, record.layout.hi)
        shadow = Shadow(storage, lo, hi, now)
        for record in reversed(needed):
            shadow.lay(record)
        return shadow.view(layout)

    def _newer(self, layout: Layout, tick: int) -> list[Record]:
        series = self._by_region()[layout]
        at = first_after(series, tick)
        newer = series[at:]
        # Of several whole Records of one region, the oldest hides the others.
        for i, record in enumerate(newer):
            if record.elements is None:
                return newer[: i + 1]
        return newer

    def _by_shadow(self, storage: torch.UntypedStorage, layout: Layout, tick: int, now: int) -> torch.Tensor:
        shadow = self._shadow
        if shadow is None or shadow.tick < tick or not self._covers(shadow, layout):
            index = self._regions()
            shadow = Shadow(storage, min(layout.lo, index.lo), max(layout.hi, index.hi), now)
            self._shadow = shadow
        for at in range(self._after(shadow.tick) - 1, -1, -1):
            if self.records[at].tick <= tick:
                break
            shadow.lay(self.records[at])
        # Handed out as a copy: the shadow moves on while a node may still hold what it was given.
        out = torch.empty_strided(layout.shape, layout.strides, dtype=layout.dtype, device=storage.device)
        return (
            Base.copy_(out, shadow.view(layout)) if 0 not in layout.strides else shadow.view(layout).clone()
        )

    @staticmethod
    def _covers(shadow: Shadow, layout: Layout) -> bool:
        return shadow._base <= layout.lo and layout.hi <= shadow._hi

    def prune(self, ticks: list[int]) -> None:
        """Drop the Records that no Save of these ticks, oldest first, can need."""
        kept: list[Record] = []
        hidden: dict[Layout, int] = {}  # the tick of the last Record of this whole region
        at, newest = 0, -1  # the last Save made before a Record
        for record in self.records:
            while at < len(ticks) and ticks[at] < record.tick:
                newest = ticks[at]
                at += 1
            # Needed if a Save was made since the last Record that hides this one.
            if newest > hidden.get(record.layout, -1):
                kept.append(record)
            if record.elements is None:
                hidden[record.layout] = record.tick
        if len(kept) == len(self.records):
            return
        self._empty()
        for record in kept:
            self.add(record)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit by bit: NaN equals itself, and 0.0 differs from -0.0."""
    if not has_values(a):
        return False  # a Write may have changed them
    if a.dtype.is_floating_point or a.dtype.is_complex:
        item = a.element_size()
        kinds: dict[int, Any] = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        if item == 16:
            return same_bytes(torch.view_as_real(a), torch.view_as_real(b))
        return bool(torch.equal(a.view(kinds[item]), b.view(kinds[item])))
    return bool(torch.equal(a, b))
