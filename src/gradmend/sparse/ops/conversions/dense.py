"""The one operation that allocates rows x columns."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from gradmend.sparse.autograd.place import in_place_is_fine, put, written_out
from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import ArgumentError
from gradmend.sparse.places import aside
from gradmend.sparse.tensor import SparseTensor


@lru_cache(maxsize=64)
def _zeros(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Of a small size, never written to: to copy it takes less time than another call."""
    with aside():
        return torch.zeros(size, dtype=dtype, device="cpu")


@implements("to_dense")
def to_dense(S: SparseTensor, dtype: torch.dtype | None = None, *, masked_grad: bool | None = None) -> Tensor:
    """Values have the gradient of their place, whatever `masked_grad` says, which is torch's own sparse tensors'."""
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise ArgumentError(f"to_dense takes a dtype, not {dtype!r}.")
    if S.batch_dims == 0 and dtype is None:
        values = S._values
        size = S._pattern._size
        if written_out(size, values):  # the shortest way, for small ones
            return _zeros(size, values.dtype).put(S._pattern._keys(), values)
        if values.dim() == 1 and in_place_is_fine():
            return values.new_zeros(S._pattern.numel).index_copy_(0, S._pattern._keys(), values).view(size)
        return put(S._pattern.numel, S._pattern._keys(), values).view(*S._pattern.size, *values.shape[1:])
    values = S._values.movedim(S.batch_dims, 0)
    flat = put(S._pattern.numel, S._pattern._keys(), values)
    dense = flat.unflatten(0, S._pattern.size)
    n = S._pattern.ndim
    dense = dense.permute(*range(n, n + S.batch_dims), *range(n), *range(n + S.batch_dims, dense.dim()))
    return dense if dtype is None else dense.to(dtype)
