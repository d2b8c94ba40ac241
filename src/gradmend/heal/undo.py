"""The undo log of one storage: old bytes of what was overwritten, and the way back to any earlier tick.

A Record holds the bytes of a region as they were just before a Write. The value of a region at a tick is the
memory as it is now with every newer Record laid over it, newest first.

Only TensorBase's own methods are used here: the names on torch.Tensor may be tapped.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._C import TensorBase as Base

from gradmend.capture.regions import Layout, LayoutIndex, overlap

# Past this many distinct regions to lay over each other, one shadow that moves back in time is cheaper.
_FEW = 24
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


class Record:
    __slots__ = ("elements", "layout", "nbytes", "old", "tick")

    def __init__(
        self, tick: int, layout: Layout, old: torch.Tensor, elements: Elements | None = None
    ) -> None:
        self.tick = tick
        self.layout = layout
        self.old = old  # bytes when the layout is dense and whole, else a tensor of its shape or its elements
        self.elements = elements
        self.nbytes = old.numel() * old.element_size()


def take(
    storage: torch.UntypedStorage, tick: int, layout: Layout, elements: Elements | None = None
) -> Record:
    """Keep the bytes of a region as they are now."""
    if elements is not None:
        try:
            return Record(tick, layout, elements.read(layout.over(storage)), elements)
        except (IndexError, RuntimeError):
            pass  # an index out of range, a mask that does not fit: PyTorch itself will say so
    if layout.dense:
        return Record(tick, layout, Base.clone(_bytes(storage, layout.lo, layout.hi)))
    layout = _once(layout)
    return Record(tick, layout, Base.clone(layout.over(storage), memory_format=torch.contiguous_format))


def _once(layout: Layout) -> Layout:
    """Without the repeats of an expanded dimension, which PyTorch refuses to write back."""
    if 0 not in layout.strides:
        return layout
    shape = tuple(n if stride else min(n, 1) for n, stride in zip(layout.shape, layout.strides, strict=True))
    return layout._replace(shape=shape)


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
            record.elements.write(layout.shifted(-self._base).over(self._storage), record.old)
        elif layout.dense:
            lo, hi = max(layout.lo, self._base), min(layout.hi, self._hi)
            if lo < hi:
                part = record.old[lo - layout.lo : hi - layout.lo]
                Base.copy_(_bytes(self._storage, lo - self._base, hi - self._base), part)
        else:
            Base.copy_(layout.shifted(-self._base).over(self._storage), record.old)
        self.tick = record.tick - 1

    def view(self, layout: Layout) -> torch.Tensor:
        return layout.shifted(-self._base).over(self._storage)


def _tick(record: Record) -> int:
    return record.tick


def _within(inner: Layout, outer: Layout) -> bool:
    return outer.lo <= inner.lo and inner.hi <= outer.hi and (inner.lo - outer.lo) % inner.dtype.itemsize == 0


class UndoLog:
    """Every Record of one storage that a live Save may need."""

    __slots__ = ("_hi", "_index", "_lo", "_series", "_shadow", "_ticks", "_whole", "nbytes", "records")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.nbytes = 0
        self._ticks: list[int] = []
        self._series: dict[Layout, list[Record]] = {}  # oldest first
        self._whole: dict[Layout, int] = {}  # the tick of the last Record of a whole region
        self._index = LayoutIndex()
        self._shadow: Shadow | None = None
        self._lo, self._hi = 1 << 62, 0  # bounds of all Records

    def add(self, record: Record) -> None:
        self.records.append(record)
        self._lo, self._hi = min(self._lo, record.layout.lo), max(self._hi, record.layout.hi)
        self._ticks.append(record.tick)
        self.nbytes += record.nbytes
        if record.elements is None:
            self._whole[record.layout] = record.tick
        series = self._series.get(record.layout)
        if series is None:
            self._series[record.layout] = [record]
            self._index.add(record.layout)
        else:
            series.append(record)

    def retick(self, old: int, new: int) -> None:
        """The newest Records turn out to be of a later Write than was thought."""
        at = bisect.bisect_left(self._ticks, old)
        for record in self.records[at:]:
            record.tick = new
        self._ticks[at:] = [new] * (len(self._ticks) - at)

    def oldest_meeting(self, layout: Layout, tick: int) -> int | None:
        """The tick of the first Record after `tick` that meets the region, if it is quickly found."""
        if len(self._series) == 1:
            at = bisect.bisect_right(self._ticks, tick)
            return self._ticks[at] if at < len(self._ticks) else None
        ticks = []
        for count, met in enumerate(self._index.meeting(layout)):
            series = self._series[met]
            at = bisect.bisect_right(series, tick, key=_tick)
            if at < len(series):
                ticks.append(series[at].tick)
            if count == _FEW:
                break
        return min(ticks, default=None)

    def hides(self, layout: Layout, newest: int) -> bool:
        """Whether a Record of this very region, made since the newest Save, leaves nothing for another to serve."""
        return self._whole.get(layout, -1) > newest

    def value(
        self, storage: torch.UntypedStorage, layout: Layout, tick: int, now: int
    ) -> torch.Tensor | None:
        """A copy of the region as it was at `tick`; None when no newer Record meets it."""
        newer = len(self._ticks) - bisect.bisect_right(self._ticks, tick)
        if not newer:
            return None
        if len(self._series) == 1:  # a whole tensor written again and again
            needed = self._newer(self.records[-1].layout, tick)
            if not overlap(self.records[-1].layout, layout):
                return None
        elif newer <= _FEW:
            needed = [r for r in self.records[-newer:] if overlap(r.layout, layout)]
        elif 2 * (layout.hi - layout.lo) > self._hi - self._lo:
            return self._by_shadow(storage, layout, tick, now)
        else:
            needed = []
            for met in self._index.meeting(layout):
                needed += self._newer(met, tick)
                if len(needed) > _FEW:
                    return self._by_shadow(storage, layout, tick, now)
        if not needed:
            return None
        needed.sort(key=_tick)
        oldest = needed[0]
        if oldest.elements is None and oldest.layout.dense and _within(layout, oldest.layout):
            # It hides every newer one, and nobody writes to what it holds: no copy.
            return layout.shifted(-oldest.layout.lo).over(Base.untyped_storage(oldest.old))
        # A strided or elementwise Record is laid whole, so the copy must hold all of it.
        lo = min([layout.lo, *(r.layout.lo for r in needed if r.elements or not r.layout.dense)])
        hi = max([layout.hi, *(r.layout.hi for r in needed if r.elements or not r.layout.dense)])
        shadow = Shadow(storage, lo, hi, now)
        for record in reversed(needed):
            shadow.lay(record)
        return shadow.view(layout)

    def _newer(self, layout: Layout, tick: int) -> list[Record]:
        series = self._series[layout]
        at = bisect.bisect_right(series, tick, key=_tick)
        newer = series[at:]
        # Of several whole Records of one region, the oldest hides the others.
        for i, record in enumerate(newer):
            if record.elements is None:
                return newer[: i + 1]
        return newer

    def _by_shadow(self, storage: torch.UntypedStorage, layout: Layout, tick: int, now: int) -> torch.Tensor:
        shadow = self._shadow
        if shadow is None or shadow.tick < tick or not self._covers(shadow, layout):
            shadow = Shadow(storage, min(layout.lo, self._lo), max(layout.hi, self._hi), now)
            self._shadow = shadow
        for at in range(bisect.bisect_right(self._ticks, shadow.tick) - 1, -1, -1):
            if self._ticks[at] <= tick:
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

    def prune(self, live: Iterable[int]) -> None:
        """Drop the Records that no Save of these ticks can need."""
        ticks = sorted(live)
        kept: list[Record] = []
        for series in self._series.values():
            before = -1
            for record in series:
                # Needed if a Save was made since the last Record that hides this one.
                at = bisect.bisect_left(ticks, record.tick)
                if at and ticks[at - 1] > before:
                    kept.append(record)
                if record.elements is None:
                    before = record.tick
        if len(kept) == len(self.records):
            return
        kept.sort(key=_tick)
        self.__init__()  # type: ignore[misc]
        for record in kept:
            self.add(record)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit by bit: NaN equals itself, and 0.0 differs from -0.0."""
    if a.dtype.is_floating_point or a.dtype.is_complex:
        item = a.element_size()
        kinds: dict[int, Any] = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        if item == 16:
            return same_bytes(torch.view_as_real(a), torch.view_as_real(b))
        return bool(torch.equal(a.view(kinds[item]), b.view(kinds[item])))
    return bool(torch.equal(a, b))
