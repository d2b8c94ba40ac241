"""Which bytes of a storage a tensor covers, and whether two tensors meet in any element."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Any

import torch

from gradmend.capture import edge
from gradmend.capture.edge import PLAIN as PLAIN

try:
    import cython
except ImportError:
    from gradmend.capture.native import uncompiled as cython

_set: Any = torch._C.TensorBase.set_  # not the name on torch.Tensor, which may be tapped

# Effort after which an overlap of two strided regions counts as one. The bytes are compared later anyway.
_MOST_WORK = 10_000


@cython.no_gc
@cython.cclass
class Layout:
    """A tensor's place in its storage: bounds in bytes, and the strided grid inside them. It never changes."""

    __slots__ = ("_hash", "complex", "dense", "dtype", "hi", "lo", "offset", "repeats", "shape", "strides")

    def __init__(
        self,
        lo: int,
        hi: int,
        dense: bool,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: torch.dtype,
    ) -> None:
        self.lo = lo  # bounds, in bytes
        self.hi = hi
        self.dense = dense  # every byte between the bounds belongs to it
        self.offset = offset  # in elements, as shape and strides
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.complex = dtype.is_complex
        self.repeats = 0 in strides  # an expanded dimension: several elements in one place
        self._hash = hash((offset, shape, strides))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self._same(other))

    def _same(self, other: Layout) -> bool:
        return (
            self._hash == other._hash
            and self.lo == other.lo
            and self.hi == other.hi
            and self.dense == other.dense
            and self.offset == other.offset
            and self.dtype is other.dtype
            and self.shape == other.shape
            and self.strides == other.strides
        )

    def __repr__(self) -> str:
        names = ("lo", "hi", "dense", "offset", "shape", "strides", "dtype")
        return f"Layout({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    @property
    def nbytes(self) -> int:
        """Bytes of the distinct elements (an expanded dimension repeats one)."""
        n: int = self.dtype.itemsize
        for size, stride in zip(self.shape, self.strides, strict=True):
            if stride != 0:
                n *= size
        return n

    def over(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """The tensor of this layout on another storage."""
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return _set(empty, storage, self.offset, self.shape, self.strides)

    def shifted(self, by: int) -> Layout:
        """The same grid, `by` bytes further down; `by` is a multiple of the item size."""
        offset = self.offset + by // self.dtype.itemsize
        return Layout(self.lo + by, self.hi + by, self.dense, offset, self.shape, self.strides, self.dtype)


def span(lo: int, hi: int) -> Layout:
    """All bytes between the bounds."""
    return Layout(lo, hi, True, lo, (hi - lo,), (1,), torch.uint8)


def has_values(t: torch.Tensor) -> bool:
    """Not on the meta device and not fake: those have a size, and nothing in it."""
    return not t.is_meta and (type(t) in PLAIN or not hasattr(t, "fake_mode"))


def physical(t: torch.Tensor) -> torch.Tensor:
    """The tensor as it lies in memory: lazy conjugation and negation taken off."""
    if t.is_conj():
        t = t.conj()
    if t.is_neg():
        t = torch._neg_view(t)
    return t


# What is saved is often what is written next: layouts met lately are handed out once more.
_lately: dict[edge.Grid, Layout] = {}
_MOST_KEPT = 4096


def layout_of(t: torch.Tensor) -> Layout:
    """Which bytes of its storage a tensor covers."""
    found = _quick_of(t)
    return _by_attributes(t) if found is None else found


def layout_at(t: torch.Tensor, key: Any) -> Layout | None:
    """The same of `t[key]`, where that is a view of numbers and slices; None where it takes more to tell."""
    return _quick_at(t, key)


def _of_grid(grid: edge.Grid | None) -> Layout | None:
    if grid is None:
        return None
    found = _lately.get(grid)
    if found is None:
        if len(_lately) >= _MOST_KEPT:
            _lately.clear()
        found = _lately[grid] = _made(*grid)
    return found


def _by_attributes(t: torch.Tensor) -> Layout:
    if t.is_nested:  # rows of their own lengths: anywhere in its memory
        return span(0, torch._C.TensorBase.untyped_storage(t).nbytes())
    return _made(int(t.storage_offset()), t.dtype, t.shape, t.stride())


def _made(offset: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
    item = dtype.itemsize
    lo = offset * item
    reach, distinct, plain = 0, 1, True
    for at in range(len(shape) - 1, -1, -1):
        size, stride = shape[at], strides[at]
        if size == 0:
            return Layout(lo, lo, True, offset, shape, strides, dtype)
        reach += (size - 1) * stride
        if size > 1 and stride != distinct:
            plain = False
        if stride != 0:
            distinct *= size
    # Only a grid without self-overlap fills its bounds by having as many elements as they hold.
    dense = plain or (distinct == reach + 1 and _no_self_overlap(shape, strides))
    return Layout(lo, lo + (reach + 1) * item, dense, offset, shape, strides, dtype)


edge.tell("know_layouts", _made)
_quick_of = edge.chosen("layout_of", lambda t: _of_grid(edge.grid(t)))
_quick_at = edge.chosen("layout_at", lambda t, key: _of_grid(edge.grid_at(t, key)))


def _no_self_overlap(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    end = 0
    for stride, size in sorted((st, sz) for st, sz in zip(strides, shape, strict=True) if sz > 1 and st):
        if stride <= end:
            return False
        end += stride * (size - 1)
    return True


def overlap(a: Layout, b: Layout) -> bool:
    """Whether they share an element: exact, strided grids included."""
    if a.lo >= b.hi or b.lo >= a.hi or a.lo == a.hi or b.lo == b.hi:  # apart, or empty
        return False
    if a.dense and b.dense:
        return True
    import numpy as np

    try:
        # numpy's stubs know max_work as a flag only; it takes any bound.
        return bool(np.shares_memory(_ghost(a), _ghost(b), max_work=_MOST_WORK))  # type: ignore[call-overload,arg-type,unused-ignore]
    except np.exceptions.TooHardError:
        return True


class _Ghost:
    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _ghost(layout: Layout) -> Any:
    """A numpy array of this layout at an address that is never read."""
    import numpy as np

    item = layout.dtype.itemsize
    dims = [(n, s * item) for n, s in zip(layout.shape, layout.strides, strict=True) if n != 1 and s != 0]
    ghost = _Ghost(
        {
            "version": 3,
            "typestr": f"|V{item}",
            "shape": tuple(n for n, _ in dims),
            "strides": tuple(s for _, s in dims),
            "data": ((1 << 40) + layout.lo, True),
        }
    )
    return np.asarray(ghost)


_NOTHING: set[Any] = set()  # of those that are not sorted yet; never filled
_NONE: list[Any] = []


@cython.no_gc
@cython.cclass
class LayoutIndex:
    """The layouts that live Saves need in one storage, found by bytes in about O(log n + hits).

    Intervals are kept in classes by the power of two of their length, each sorted by start, so that a query
    looks back no further than the longest interval of a class. Most queries are answered before that, by the
    very same layout or by the bounds of all, so layouts are put into their classes only when one goes that far.
    """

    __slots__ = ("_classes", "_counts", "_gone", "_unsorted", "hi", "lo")

    def __init__(self) -> None:
        self._counts: dict[Layout, int] = {}  # how many Saves
        # None until somebody goes that far: nearly all queries are answered without.
        self._classes: dict[int, list[tuple[int, int, Layout]]] | None = None
        self._unsorted: list[Layout] = _NONE
        self._gone: set[Layout] = _NOTHING  # sorted or to be sorted still, though no Save has them
        self.lo = 1 << 62  # bounds of all, never drawn in
        self.hi = 0

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, layout: Layout) -> bool:
        return layout in self._counts

    def add(self, layout: Layout) -> None:
        counts = self._counts
        seen = counts.get(layout)
        if seen is not None:
            counts[layout] = seen + 1
            return
        counts[layout] = 1
        if self._classes is not None:
            if layout in self._gone:
                self._gone.remove(layout)
                return
            self._unsorted.append(layout)
        if layout.lo < self.lo:
            self.lo = layout.lo
        if layout.hi > self.hi:
            self.hi = layout.hi

    def remove(self, layout: Layout) -> None:
        seen = self._counts[layout]
        if seen > 1:
            self._counts[layout] = seen - 1
            return
        del self._counts[layout]
        if self._classes is None:
            return
        self._gone.add(layout)
        if len(self._gone) > 16 + len(self._counts):
            self.rebuild()

    def rebuild(self) -> None:
        """Most of what was put here is gone: begin again with the rest."""
        self._classes = {}
        self._gone = set()
        self._unsorted = list(self._counts)

    def meeting(self, layout: Layout) -> Iterator[Layout]:
        if layout.lo >= self.hi or layout.hi <= self.lo:
            return
        if self._classes is None:
            self.rebuild()
        if self._unsorted:
            self._sort()
        assert self._classes is not None
        gone = self._gone
        for size, row in self._classes.items():
            at = bisect.bisect_left(row, (layout.lo - (1 << size),))
            while at < len(row) and row[at][0] < layout.hi:
                other = row[at][2]
                if other.hi > layout.lo and other not in gone and overlap(layout, other):
                    yield other
                at += 1

    def _sort(self) -> None:
        classes = self._classes
        assert classes is not None
        grown: dict[int, list[tuple[int, int, Layout]]] = {}
        for layout in self._unsorted:
            size = (layout.hi - layout.lo).bit_length()
            grown.setdefault(size, []).append((layout.lo, id(layout), layout))
        for size, rows in grown.items():
            row = classes.setdefault(size, [])
            if len(rows) == 1:
                bisect.insort(row, rows[0])
            else:
                row += rows
                row.sort()
        self._unsorted = []
