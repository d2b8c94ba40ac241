"""Parts of a tensor: a row, a slice, chosen rows, single entries. Never longer than the entries they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import ArgumentError, OutsideError, SparseError
from gradmend.sparse.helpers.dims import entries_back, entries_first, number, split, wrap
from gradmend.sparse.helpers.rebuild import keep, rebuild
from gradmend.sparse.kernels.merging import runs
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.places import is_wide, linear
from gradmend.sparse.setops import find
from gradmend.sparse.tensor import SparseTensor

_CHUNK = 1 << 18  # indices and masks as long as the rows are read in pieces
_WHOLE = (torch.int64, torch.int32)


@implements("select")
def select(S: SparseTensor, dim: int, index: int) -> Any:
    d = wrap(S, dim)
    n, index = S.shape[d], number("an index", index)
    if not -n <= index < n:
        raise OutsideError(f"index {index} is outside dimension {dim} of S, which has {n} entries.")
    parts = split(S, (d,))
    if not parts.sparse:
        return _on_values(S, d, lambda v, at: v.select(at, index % n), drop=True)
    axis = parts.sparse[0]
    if S._pattern.ndim == 1:
        return lookup(S, (torch.tensor(index % n, device=S.device),))
    take = _equal(S._pattern, axis, index % n)
    rest = [i for i in range(S._pattern.ndim) if i != axis]
    size = tuple(S._pattern.size[i] for i in rest)
    return keep(S, Pattern._trusted(S._pattern._indices[rest][:, take], size), take)


def _equal(pattern: Pattern, axis: int, index: int) -> Tensor:
    places = pattern._indices[axis]
    if axis == 0:
        wanted = torch.tensor([index, index + 1], device=pattern.device)
        a, b = torch.searchsorted(places.contiguous(), wanted).tolist()
        return torch.arange(a, b, device=pattern.device)
    return (places == index).nonzero().squeeze(1)


def _on_values(S: SparseTensor, d: int, f: Any, drop: bool = False) -> SparseTensor:
    """The same on a batch or dense dimension: the pattern stays."""
    at = d if d < S.batch_dims else d - S._pattern.ndim + 1
    values = f(S._values, at)
    return S.like(values, batch_dims=S.batch_dims - (1 if drop and d < S.batch_dims else 0))


def slice_dim(S: SparseTensor, dim: int, part: slice) -> SparseTensor:
    d = wrap(S, dim)
    if part.step is not None and part.step <= 0:
        raise SparseError(f"a slice of S takes a positive step, not {part.step}: use S.flip({dim}).")
    start, stop, step = part.indices(S.shape[d])
    count = len(range(start, stop, step))
    if count == S.shape[d]:
        return S
    parts = split(S, (d,))
    if not parts.sparse:
        index = (slice(start, stop, step),)
        return _on_values(S, d, lambda v, at: v[(slice(None),) * at + index])
    axis = parts.sparse[0]
    places = S._pattern._indices
    inside = (places[axis] >= start) & (places[axis] < stop)
    if step > 1:
        inside &= (places[axis] - start) % step == 0
    take = inside.nonzero().squeeze(1)
    index_new = places[:, take].clone()
    index_new[axis] = (index_new[axis] - start) // step
    return keep(S, Pattern._trusted(index_new, _resized(S, axis, count)), take)


def _resized(S: SparseTensor, axis: int, count: int) -> tuple[int, ...]:
    size = list(S._pattern.size)
    size[axis] = count
    return tuple(size)


@implements("narrow", "narrow_copy")
def narrow(S: SparseTensor, dim: int, start: int, length: int) -> SparseTensor:
    n = S.shape[wrap(S, dim)]
    start, length = number("start", start), number("length", length)
    if start < -n or length < 0 or (start + n if start < 0 else start) + length > n:
        raise OutsideError(
            f"narrow({dim}, {start}, {length}) is outside dimension {dim}, which has {n} entries."
        )
    start = start + n if start < 0 else start
    return slice_dim(S, dim, slice(start, start + length))


@implements("index_select")
def index_select(S: SparseTensor, dim: int, index: Tensor) -> SparseTensor:
    """Rows (columns, ...) in any order, as often as asked."""
    if isinstance(index, Tensor) and index.numel() and index.dtype in _WHOLE and int(index.min()) < 0:
        raise OutsideError(
            "index_select counts from 0, as torch's does: for rows from the end, write S[index]."
        )
    return take_dim(S, dim, index)


def take_dim(S: SparseTensor, dim: int, index: Tensor) -> SparseTensor:
    """index_select, where a negative index counts from the end."""
    d = wrap(S, dim)
    if not isinstance(index, Tensor):
        raise ArgumentError(f"index_select takes a tensor of indices, not {type(index).__name__}.")
    index = index.to(S._pattern.device)
    if index.dtype not in _WHOLE or index.dim() > 1:
        if index.numel() or index.dim() > 1:
            raise SparseError(
                f"index_select takes one vector of int64 or int32, not {index.dtype} {tuple(index.shape)}."
            )
        index = index.long()
    if index.dim() == 0:
        index = index[None]
    n = S.shape[d]
    if index.numel() and (int(index.min()) < -n or int(index.max()) >= n):
        raise OutsideError(f"an index is outside dimension {dim} of S, which has {n} entries.")
    parts = split(S, (d,))
    if not parts.sparse:
        return _on_values(S, d, lambda v, at: v.index_select(at, index % n))
    axis = parts.sparse[0]
    if axis == 0 and S._pattern.ndim == 2 and not is_wide(n, S.nnz):
        return _take_rows(S, torch.where(index < 0, index + n, index))
    order, places = None, S._pattern._indices[axis]
    if axis:
        places, order = torch.sort(places, stable=True)
    places = places.contiguous()
    targets, entries = [], []
    for at in range(0, index.shape[0], _CHUNK):
        part = index[at : at + _CHUNK]
        part = torch.where(part < 0, part + n, part)
        first = torch.searchsorted(places, part)
        count = torch.searchsorted(places, part, right=True) - first
        hit = count.nonzero().squeeze(1)
        first, count = first[hit], count[hit]
        where = torch.repeat_interleave(torch.arange(hit.shape[0], device=S.device), count)
        offset = torch.arange(where.shape[0], device=S.device) - (count.cumsum(0) - count)[where]
        targets.append(hit[where] + at)
        entries.append(first[where] + offset)
    empty = torch.empty(0, dtype=torch.int64, device=S.device)
    target, take = torch.cat([empty, *targets]), torch.cat([empty, *entries])
    if order is not None:
        take = order[take]
    moved = S._pattern._indices[:, take].clone()
    moved[axis] = target
    return rebuild(S, moved, _resized(S, axis, index.shape[0]), take, "index_select")


def _take_rows(S: SparseTensor, rows: Tensor) -> SparseTensor:
    """Rows of a matrix, by where each begins."""
    pattern, rows = S._pattern, rows.to(torch.int64)
    first = pattern._ptr.index_select(0, rows)
    which, take = runs(first, pattern._ptr.index_select(0, rows + 1) - first)
    places = torch.stack([which, pattern._col.index_select(0, take)])
    return keep(S, Pattern._trusted(places, (rows.shape[0], pattern.size[1])), take)


def mask_dim(S: SparseTensor, dim: int, mask: Tensor) -> SparseTensor:
    """Rows (columns, ...) where the mask holds."""
    d = wrap(S, dim)
    if mask.shape[0] != S.shape[d]:
        raise OutsideError(
            f"a mask of {mask.shape[0]} doesn't fit dimension {dim}, which has {S.shape[d]} entries."
        )
    parts = split(S, (d,))
    if not parts.sparse:
        return _on_values(S, d, lambda v, at: v.index_select(at, mask.nonzero().squeeze(1)))
    axis = parts.sparse[0]
    places = S._pattern._indices[axis]
    take = mask[places].nonzero().squeeze(1)
    moved = S._pattern._indices[:, take].clone()
    # Ranks among the chosen rows, in pieces: a cumulative sum would be as long as the mask.
    rank, before = torch.empty_like(moved[axis]), 0
    for at in range(0, mask.shape[0], _CHUNK):
        ranks = mask[at : at + _CHUNK].cumsum(0)
        here = (moved[axis] >= at) & (moved[axis] < at + _CHUNK)
        rank[here] = before + ranks[moved[axis][here] - at] - 1
        before += int(ranks[-1])
    moved[axis] = rank
    return keep(S, Pattern._trusted(moved, _resized(S, axis, before)), take)


def lookup(S: SparseTensor, index: Sequence[Tensor]) -> Tensor:
    """Single entries by their places (as many index tensors as sparse dimensions): dense, zero if not stored."""
    size = S._pattern.size
    wide = torch.broadcast_tensors(*index)
    for i, n in zip(wide, size, strict=True):
        if i.numel() and (int(i.min()) < -n or int(i.max()) >= n):
            raise OutsideError(f"an index is outside a dimension with {n} entries.")
    places = torch.stack([torch.where(i < 0, i + n, i).flatten() for i, n in zip(wide, size, strict=True)])
    there, at = find(S._pattern, linear(places, size))
    values = entries_first(S)
    if S.nnz == 0:
        # Joined to the values, of which there are none: what was differentiable stays so.
        found = torch.cat([values, values.new_zeros(at.shape[0], *values.shape[1:])])
    else:
        found = values.index_select(0, at)
        found = torch.where(there.view(-1, *[1] * (found.dim() - 1)), found, torch.zeros_like(found))
    found = entries_back(found, S.batch_dims)
    b = S.batch_dims
    return found.reshape((*found.shape[:b], *wide[0].shape, *found.shape[b + 1 :]))


class Slices(Sequence[Any]):
    """The rows of a long tensor, made when asked for: ten million objects are nobody's wish."""

    def __init__(self, S: SparseTensor, dim: int) -> None:
        self.S, self.dim = S, dim

    def __len__(self) -> int:
        return int(self.S.shape[self.dim])

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return tuple(self[j] for j in range(*i.indices(len(self))))
        return select(self.S, self.dim, i)

    def __iter__(self) -> Iterator[Any]:
        return (select(self.S, self.dim, i) for i in range(len(self)))


@implements("unbind")
def unbind(S: SparseTensor, dim: int = 0) -> Sequence[Any]:
    """A tuple; above 4096 slices a sequence that makes them on demand."""
    slices = Slices(S, wrap(S, dim))
    return slices if len(slices) > 4096 else tuple(slices)


@implements("split")
def split_(S: SparseTensor, split_size_or_sections: Any, dim: int = 0) -> tuple[SparseTensor, ...]:
    n = S.shape[wrap(S, dim)]
    if isinstance(split_size_or_sections, int) and not isinstance(split_size_or_sections, bool):
        step = split_size_or_sections
        if step <= 0:
            raise SparseError(f"split takes a positive size, not {step}.")
        return tuple(slice_dim(S, dim, slice(at, at + step)) for at in range(0, max(n, 1), step))
    if not isinstance(split_size_or_sections, Sequence):
        raise ArgumentError(f"split takes a size or a list of sizes, not {split_size_or_sections!r}.")
    sizes = [number("a size", m) for m in split_size_or_sections]
    if sum(sizes) != n or any(m < 0 for m in sizes):
        raise SparseError(f"split into {sizes} doesn't add up to the {n} entries of dimension {dim}.")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(slice_dim(S, dim, slice(at, at + m)) for at, m in zip(starts, sizes, strict=True))


@implements("chunk")
def chunk(S: SparseTensor, chunks: int, dim: int = 0) -> tuple[SparseTensor, ...]:
    n = S.shape[wrap(S, dim)]
    if number("chunks", chunks) <= 0:
        raise SparseError(f"chunk takes a positive number of chunks, not {chunks}.")
    return split_(S, max(1, -(-n // chunks)), dim)
