"""From dense tensors and nested lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.errors import PatternError
from gradmend.sparse.helpers.gather import pick
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor, at, picked


def from_dense(X: Any, mask: Any = None, *, sparse_dims: int | None = None) -> SparseTensor:
    """The non-zero entries, or those of a mask or a Pattern (zeros included); gradients go back to X."""
    if not isinstance(X, Tensor):
        X = torch.as_tensor(X)
    if X.dim() == 0:
        raise PatternError("a number is no sparse tensor: from_dense takes at least one dimension.")
    n = X.dim() if sparse_dims is None else sparse_dims
    if isinstance(mask, Pattern):
        pattern = mask
    else:
        if mask is None:
            mask = X.detach() != 0
            mask = mask.flatten(n).any(-1) if n < X.dim() else mask
        if mask.dtype != torch.bool:
            raise PatternError(f"a mask is boolean, not {mask.dtype}: write mask != 0.")
        pattern = Pattern._trusted(mask.nonzero().t().contiguous(), tuple(mask.shape))
    if pattern.size != tuple(X.shape[: pattern.ndim]):
        raise PatternError(f"the mask is for the shape {pattern.size}, and X has the shape {tuple(X.shape)}.")
    if X.requires_grad and X.is_leaf and torch.is_grad_enabled():
        return picked(pattern, X)  # read by each operation: S may be made once and trained for ever
    return at(pattern, pick(X, pattern.canonical()))


def from_lists(
    columns: Sequence[Sequence[int]], values: Sequence[Sequence[float]] | None = None, cols: int | None = None
) -> SparseTensor:
    """Row by row: the columns of each row's entries, and their values (1 if not given)."""
    rows = [r for r, line in enumerate(columns) for _ in line]
    flat = [c for line in columns for c in line]
    if values is None:
        numbers = torch.ones(len(flat))
    else:
        lengths = [len(line) for line in columns]
        if lengths != [len(line) for line in values]:
            raise PatternError("columns and values must have as many items in every row.")
        numbers = torch.tensor([v for line in values for v in line])
    width = cols if cols is not None else max(flat, default=-1) + 1
    index = torch.tensor([rows, flat], dtype=torch.int64).reshape(2, -1)
    return SparseTensor(Pattern(index, (len(columns), width)), numbers)
