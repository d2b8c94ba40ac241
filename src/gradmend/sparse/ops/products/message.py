"""Message passing: every stored entry sends something along, every row gathers what it was sent.

Only stored entries count here (an edge with weight 0 is an edge), and rows without entries receive 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.autograd.product import agree
from gradmend.sparse.autograd.segment import counts, extreme, lowest, segment_sum, spread
from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import SparseError
from gradmend.sparse.helpers.dims import entries_first, hand_back, split, wrap
from gradmend.sparse.ops.products.matmul import sparse_dense
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
    sent = X.index_select(0, S._pattern._col)
    sent = values.view(-1, *[1] * (X.dim() - 1)) * sent
    return aggregate(make(S._pattern, sent), reduce)


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
    nnz, least = values.shape[0], lowest(values.dtype, not largest)
    if nnz == 0:
        # Joined to the values, of which there are none: what was differentiable stays so.
        return torch.cat([values, values.new_zeros(segs.groups, *values.shape[1:])])
    top = extreme(values, segs, largest, least)
    hit = (values == spread(top, segs)) | values.isnan()
    number = torch.arange(nnz, device=values.device).view(-1, *[1] * (values.dim() - 1))
    first = extreme(torch.where(hit, number, nnz), segs, False, nnz)
    found = values.gather(0, first.clamp(max=nnz - 1))
    return torch.where(first < nnz, found, torch.zeros_like(found))
