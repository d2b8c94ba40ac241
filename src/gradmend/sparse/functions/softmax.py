"""softmax and log_softmax along a dimension, over the stored entries only (as torch.sparse.softmax)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse import kernels
from gradmend.sparse.dispatch import implements
from gradmend.sparse.functions.dims import entries_back, entries_first, split, wrap
from gradmend.sparse.functions.segment import eager, extreme, in_order, lowest, segment_sum, spread
from gradmend.sparse.pattern import Segments
from gradmend.sparse.tensor import SparseTensor


def _along(S: SparseTensor, dim: Any, dtype: torch.dtype | None, log: bool) -> SparseTensor:
    if dtype is not None:
        S = S.to(dtype)
    dim = wrap(S, dim)
    parts = split(S, (dim,))
    f = torch.log_softmax if log else torch.softmax
    if parts.batch:
        return S.like(f(S.values(), dim))
    if parts.dense:
        return S.like(f(S.values(), S.batch_dims + 1 + parts.dense[0]))
    keep = tuple(d for d in range(S.pattern.ndim) if d not in parts.sparse)
    values = segment_softmax(entries_first(S), S.pattern.segments(keep), log)
    return S.like(entries_back(values, S.batch_dims))


def segment_softmax(values: Tensor, segs: Segments, log: bool = False) -> Tensor:
    """[nnz, ...]: normalised within each group."""
    if values.shape[0] == 0:
        return values
    if eager(values) and values.dim() == 1:
        kernel = kernels.segment_log_softmax if log else kernels.segment_softmax
        made = kernel(segs.ptr, in_order(values, segs))
        return made if segs.perm is None else torch.empty_like(made).index_copy_(0, segs.perm, made)
    top = extreme(values, segs, True, lowest(values.dtype))
    top = torch.where(top.isinf(), torch.zeros_like(top), top)
    away = values - spread(top, segs)
    total = segment_sum(away.exp(), segs)
    return away - spread(total.log(), segs) if log else away.exp() / spread(total, segs)


@implements("softmax", also=(torch.sparse.softmax,))
def softmax(
    S: SparseTensor, dim: int, dtype: torch.dtype | None = None, *, _stacklevel: int = 3
) -> SparseTensor:
    return _along(S, dim, dtype, log=False)


@implements("log_softmax", also=(torch.sparse.log_softmax,))
def log_softmax(
    S: SparseTensor, dim: int, dtype: torch.dtype | None = None, *, _stacklevel: int = 3
) -> SparseTensor:
    return _along(S, dim, dtype, log=True)
