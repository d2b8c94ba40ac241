"""Which bytes of a storage a tensor covers, and whether two tensors meet in any element."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Any

import torch

from gradmend.capture.ledger import fields
from gradmend.capture.native.loading import compiled

_set: Any = torch._C.TensorBase.set_  # not the name on torch.Tensor, which may be tapped

PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))  # the classes that override nothing

# Effort after which an overlap of two strided regions counts as one. The bytes are compared later anyway.
_MOST_WORK = 10_000


@fields.grafted
class Layout(fields.Layout):
    """A tensor's place in its storage: bounds in bytes, and the strided grid inside them."""

    __slots__ = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the distinct elements (an expanded dimension repeats one)."""
        n = self.dtype.itemsize
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
        return Layout(
            self.lo + by,
            self.hi + by,
            self.dense,
            self.offset + by // self.dtype.itemsize,
            self.shape,
            self.strides,
            self.dtype,
        )


def span(lo: int, hi: int) -> Layout:
    """All bytes between the bounds."""
    return Layout(lo, hi, True, lo, (hi - lo,), (1,), torch.uint8)


def has_values(t: torch.Tensor) -> bool:
    """Not on the meta device and not fake: those have a size, and nothing in it."""
    return t.device.type != "meta" and (type(t) in PLAIN or not hasattr(t, "fake_mode"))


def physical(t: torch.Tensor) -> torch.Tensor:
    """The tensor as it lies in memory: lazy conjugation and negation taken off."""
    if t.is_conj():
        t = t.conj()
    if t.is_neg():
        t = torch._neg_view(t)
    return t


def _layout_of(t: torch.Tensor) -> Layout:
    if t.is_nested:  # rows of their own lengths: anywhere in its memory
        return span(0, torch._C.TensorBase.untyped_storage(t).nbytes())
    dtype, shape, strides, offset = t.dtype, t.shape, t.stride(), int(t.storage_offset())
    item = dtype.itemsize
    lo = offset * item
    if t.is_contiguous():
        return Layout(lo, lo + t.numel() * item, True, offset, shape, strides, dtype)
    reach, distinct = 0, 1
    for size, stride in zip(shape, strides, strict=True):
        if size == 0:
            return Layout(lo, lo, True, offset, shape, strides, dtype)
        reach += (size - 1) * stride
        if stride != 0:
            distinct *= size
    # Only a grid without self-overlap fills its bounds by having as many elements as they hold.
    dense = distinct == reach + 1 and _no_self_overlap(shape, strides)
    return Layout(lo, lo + (reach + 1) * item, dense, offset, shape, strides, dtype)


def _no_self_overlap(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    end = 0
    for stride, size in sorted((st, sz) for st, sz in zip(strides, shape, strict=True) if sz > 1 and st):
        if stride <= end:
            return False
        end += stride * (size - 1)
    return True


layout_of = _layout_of
if compiled is not None:
    _Base: Any = torch._C.TensorBase  # as above: the names on torch.Tensor may be tapped
    _shape, _dtype = (_Base.__dict__[name] for name in ("shape", "dtype"))
    # One call for all that a tensor is; an older torch has no such table.
    compiled.know_facts(getattr(torch.Tensor, "__dlpack_c_exchange_api__", None), _dtype, PLAIN)
    compiled.know_grids(_shape, _dtype, _Base.stride, _Base.storage_offset)
    compiled.know_layouts(_layout_of)
    layout_of = compiled.layout_of


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


@fields.grafted
class LayoutIndex(fields.LayoutIndex):
    """The layouts that live Saves need in one storage, found by bytes in about O(log n + hits).

    Intervals are kept in classes by the power of two of their length, each sorted by start, so that a query
    looks back no further than the longest interval of a class. Most queries are answered before that, by the
    very same layout or by the bounds of all, so layouts are put into their classes only when one goes that far.
    """

    __slots__ = ()

    def __init__(self) -> None:
        self._counts = {}
        self._classes = {}
        self._unsorted = []
        self._gone = set()
        self.lo, self.hi = 1 << 62, 0

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
        self._gone.add(layout)
        if len(self._gone) > 16 + len(self._counts):
            self.rebuild()

    def rebuild(self) -> None:
        """Most of what was put here is gone: begin again with the rest."""
        self._classes.clear()
        self._gone.clear()
        self._unsorted = list(self._counts)

    def meeting(self, layout: Layout) -> Iterator[Layout]:
        if layout.lo >= self.hi or layout.hi <= self.lo:
            return
        if self._unsorted:
            self._sort()
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
