"""Message passing: every stored entry sends something along, every row gathers what it was sent.

Only stored entries count here (an edge with weight 0 is an edge), and rows without entries receive 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.autograd.place import in_place_is_fine, put
from gradmend.sparse.autograd.product import agree
from gradmend.sparse.autograd.segment import counts, extreme, lowest, segment_sum, spread
from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import SparseError
from gradmend.sparse.helpers.dims import entries_first, hand_back, split, wrap
from gradmend.sparse.ops.products.matmul import sparse_dense
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.segments import Segments
from gradmend.sparse.tensor import SparseTensor, make


@implements("propagate")
def propagate(S: SparseTensor, X: Tensor, reduce: str = "sum") -> Tensor:
    """out[i] = reduce over stored (i, j) of S[i, j] * X[j]; reduce is sum, mean, max or min."""
    if not isinstance(S, SparseTensor):
        raise SparseError("messages pass along a SparseTensor.")
    if reduce == "sum":
        return sparse_dense(S, X)
    if reduce not in ("mean", "max", "min"):
        raise SparseError(f"reduce={reduce!r}: messages are reduced by sum, mean, max or min.")
    if S._pattern.ndim != 2 or S.batch_dims or S.dense_dim():
        raise SparseError(f"messages pass along a matrix, not the shape {tuple(S.shape)}.")
    if not isinstance(X, Tensor) or X.dim() == 0 or X.shape[0] != S.shape[1]:
        got = tuple(X.shape) if isinstance(X, Tensor) else type(X).__name__
        raise SparseError(
            f"messages need a row of X for each of the {S.shape[1]} columns of S, and X is {got}."
        )
    if reduce == "mean":
        segs = S._pattern._segments((0,))
        share = spread(1 / counts(segs, S._values).to(S.dtype), segs)
        return sparse_dense(S.like(S._values * share), X)
    values, X = agree(S._values, X)
    if X.dim() == 2 and S.nnz and in_place_is_fine() and not X.is_meta:
        return _largest(values, X, S._pattern, reduce == "max")
    sent = X.index_select(0, S._pattern._col)
    sent = values.view(-1, *[1] * (X.dim() - 1)) * sent
    return aggregate(make(S._pattern, sent), reduce)


_MOST = 1 << 18  # numbers that are sent at once


def _largest(values: Tensor, X: Tensor, pattern: Pattern, largest: bool) -> Tensor:
    """[rows, k]: the extreme of what each row is sent. Messages are made a part at a time, and not kept."""
    lowest(X.dtype)
    segs = pattern._segments((0,))
    first = X.new_empty((segs.groups, X.shape[1]), dtype=torch.int64)
    with torch.no_grad():
        for rows, entries, features, part in _parts(segs, X.shape[1], values.is_cpu):
            sent = X[:, features].index_select(0, pattern._col[entries]) * values[entries][:, None]
            found = first_of(sent, part, largest)
            first[rows, features] = torch.where(found < sent.shape[0], found + entries.start, pattern.nnz)
    found = first < pattern.nnz
    entry = first.clamp_(max=pattern.nnz - 1)
    sender = pattern._col.index_select(0, entry.flatten()).view(entry.shape)
    out = X.gather(0, sender) * values.index_select(0, entry.flatten()).view(entry.shape)
    out = torch.where(found, out, torch.zeros_like(out))
    return out if segs.ids is None else put(segs.total, segs.ids, out)


def _parts(segs: Segments, k: int, by_row: bool) -> Iterator[tuple[slice, slice, slice, Segments]]:
    """Rows, their entries and features, few enough to be sent at once. On a device all rows: where they end it knows alone."""
    nnz = segs.seg.shape[0]
    cuts = [0, segs.groups]
    if by_row and nnz * k > _MOST:
        marks = torch.arange(_MOST // k, nnz, max(_MOST // k, 1))
        cuts = torch.unique(torch.cat([torch.tensor(cuts), torch.searchsorted(segs.ptr, marks)])).tolist()
    for low, high in itertools.pairwise(cuts):
        first, last = (int(segs.ptr[low]), int(segs.ptr[high])) if by_row else (0, nnz)
        if first == last:
            last = first
        part = Segments(None, segs.ptr[low : high + 1] - first, None, segs.seg[first:last] - low, high - low)
        width = max(_MOST // max(last - first, 1), 1)
        for at in range(0, k, width):
            yield slice(low, high), slice(first, last), slice(at, min(at + width, k)), part


@implements("aggregate")
def aggregate(S: SparseTensor, reduce: str = "sum", dim: int = 1) -> Any:
    """Reduces the stored entries along `dim`: what S.sum(1) is to sum, for mean, max and min of messages."""
    parts = split(S, (wrap(S, dim),))
    if not parts.sparse:
        raise SparseError(f"aggregate reduces a sparse dimension, and {dim} is not one.")
    keep = tuple(d for d in range(S._pattern.ndim) if d not in parts.sparse)
    segs = S._pattern._segments(keep)
    values = entries_first(S)
    if reduce in ("sum", "mean"):
        found = segment_sum(values, segs)
        if reduce == "mean":
            found = found / counts(segs, found).clamp(min=1)
    elif reduce in ("max", "min"):
        found = first_extreme(values, segs, reduce == "max")
    else:
        raise SparseError(f"reduce={reduce!r}: messages are reduced by sum, mean, max or min.")
    return hand_back(S, found, segs, keep, False, 0, "aggregate", len(keep) <= 1)


def first_extreme(values: Tensor, segs: Segments, largest: bool) -> Tensor:
    """[nnz, ...] -> [groups, ...]: the extreme of each group, its gradient to the first entry that has it."""
    nnz = values.shape[0]
    lowest(values.dtype)  # complex numbers have no extremes
    if nnz == 0:
        # Joined to the values, of which there are none: what was differentiable stays so.
        return torch.cat([values, values.new_zeros(segs.groups, *values.shape[1:])])
    first = first_of(values, segs, largest)
    found = values.gather(0, first.clamp(max=nnz - 1))
    return torch.where(first < nnz, found, torch.zeros_like(found))


def first_of(values: Tensor, segs: Segments, largest: bool) -> Tensor:
    """[nnz, ...] -> [groups, ...]: the first entry that has the extreme of its group; nnz where there is none."""
    nnz = values.shape[0]
    top = extreme(values, segs, largest, lowest(values.dtype, not largest))
    hit = (values == spread(top, segs)) | values.isnan()
    number = torch.arange(nnz, device=values.device).view(-1, *[1] * (values.dim() - 1))
    return extreme(torch.where(hit, number, nnz), segs, False, nnz)
