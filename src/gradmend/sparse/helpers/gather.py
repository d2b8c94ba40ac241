"""Dense operands met at the entries: what S * X, S / X, S + X and sparse_mask have in common."""

from __future__ import annotations

import math
from numbers import Number
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.errors import SparseError, torchs_own
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor


def is_number(x: Any) -> bool:
    return (isinstance(x, Tensor) and x.dim() == 0) or isinstance(x, Number | torch.SymInt | torch.SymFloat)


def at_entries(S: SparseTensor, X: Tensor) -> Tensor:
    """X, broadcast as usual, at the entries of S: something that goes with S._values."""
    if not isinstance(X, Tensor):
        raise SparseError(
            f"a sparse tensor is combined with tensors and numbers, not with {type(X).__name__}."
        )
    if X.layout is not torch.strided:
        raise torchs_own()
    shape, extra = tuple(S.shape), S.ndim - X.dim()
    if extra < 0:
        raise SparseError(
            f"a dense operand of {X.dim()} dimensions doesn't broadcast to S of the shape {shape}."
        )
    full = (1,) * extra + tuple(X.shape)
    if any(n not in (1, m) for n, m in zip(full, shape, strict=True)):
        raise SparseError(
            f"a dense operand of the shape {tuple(X.shape)} doesn't broadcast to S of the shape {shape}."
        )
    return pick(X.reshape(full) if extra else X, S._pattern, S.batch_dims)


def pick(X: Tensor, pattern: Pattern, lead: int = 0) -> Tensor:
    """X [*lead, *size, *rest] -> [*lead, nnz, *rest]; sizes of 1 are broadcast, and never written out."""
    n = pattern.ndim
    live = [d for d in range(n) if X.shape[lead + d] != 1 or pattern.size[d] == 1]
    if not live:
        return X.flatten(lead, lead + n - 1)
    for d in reversed(range(n)):
        if d not in live:
            X = X.squeeze(lead + d)
    index = pattern._indices
    if len(live) == 1:
        return X.index_select(lead, index[live[0]])
    if X.is_contiguous() or lead:
        size = [pattern.size[d] for d in live]
        key = index[live[0]]
        for d, m in zip(live[1:], size[1:], strict=True):
            key = key * m + index[d]
        return X.flatten(lead, lead + len(live) - 1).index_select(lead, key)
    # Flattening would copy the whole operand.
    return X[tuple(index[d] for d in live)]


def add_to_dense(S: SparseTensor, X: Tensor) -> Tensor:
    """S + X for an X of S's shape: the values are added to a copy of X."""
    if X.layout is not torch.strided:
        raise torchs_own()
    n, lead = S._pattern.ndim, S.batch_dims
    values = S._values
    dtype = torch.promote_types(values.dtype, X.dtype)
    flat = X.to(dtype).reshape(*X.shape[:lead], math.prod(S._pattern.size), *X.shape[lead + n :])
    shape = (*flat.shape[:lead], S.nnz, *flat.shape[lead + 1 :])
    return flat.index_add(lead, S._pattern._keys(), values.to(dtype).expand(shape)).reshape(X.shape)
