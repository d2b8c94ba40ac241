"""From indices and values, the way people usually have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.errors import PatternError
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor


def from_coo(
    indices: Any, values: Any, size: Sequence[int] | None = None, *, batch_dims: int = 0
) -> SparseTensor:
    """Unsorted and repeated places are welcome: duplicates are summed, each gets its gradient.

    `size` is the whole shape, as torch.sparse_coo_tensor takes it, or that of the sparse dimensions alone.
    """
    if not isinstance(values, Tensor):
        device = indices.device if isinstance(indices, Tensor) else None
        values = torch.as_tensor(values, device=device)
    if not isinstance(indices, Tensor):
        indices = torch.as_tensor(indices, device=values.device)
    dims = indices.shape[0] if indices.dim() == 2 else None
    if size is not None and dims is not None and len(size) != dims:
        size = _sparse_part(tuple(size), values, dims, batch_dims)
    pattern = Pattern(indices, size)
    return SparseTensor(pattern, values, batch_dims=batch_dims)


def _sparse_part(size: tuple[int, ...], values: Tensor, dims: int, batch_dims: int) -> tuple[int, ...]:
    lead, tail = values.shape[:batch_dims], values.shape[batch_dims + 1 :]
    whole = (*lead, *size[len(lead) : len(lead) + dims], *tail)
    if size != whole:
        raise PatternError(
            f"the size {size} doesn't fit {dims} sparse dimensions and values of the shape "
            f"{tuple(values.shape)}: it must be {dims} numbers, or {(*lead, *['n'] * dims, *tail)} in full."
        )
    return size[len(lead) : len(lead) + dims]
