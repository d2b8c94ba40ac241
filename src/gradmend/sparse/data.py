"""Sparse inputs for a DataLoader: rows of one matrix, one-hot and multi-hot vectors.

torch's default_collate makes a batch of them: vectors of n become one sparse matrix of (batch, n).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from gradmend.sparse.errors import PatternError
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor


def one_hot(ids: Any, n: int, dtype: torch.dtype = torch.float32) -> SparseTensor:
    """ids [...] -> [..., n], 1 where the id is."""
    ids = torch.as_tensor(ids)
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise PatternError(f"ids are whole numbers, not {ids.dtype}.")
    where = torch.ones_like(ids, dtype=torch.bool).nonzero().t().view(ids.dim(), ids.numel())
    index = torch.cat([where, ids.reshape(1, -1).to(torch.int64)])
    return SparseTensor(Pattern(index, (*ids.shape, n)), torch.ones(ids.numel(), dtype=dtype))


def multi_hot(
    ids: Iterable[int] | Tensor, n: int, weights: Any = None, dtype: torch.dtype = torch.float32
) -> SparseTensor:
    """Some ids -> a vector of n: how often each is named, or the sum of its weights."""
    try:
        index = torch.as_tensor(ids if isinstance(ids, Tensor) else list(ids), dtype=torch.int64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PatternError(f"the ids of one vector are a list of whole numbers ({error}).") from None
    if index.dim() != 1:
        raise PatternError(f"the ids of one vector are a list, not {tuple(index.shape)}.")
    values = (
        torch.ones(index.shape[0], dtype=dtype) if weights is None else torch.as_tensor(weights, dtype=dtype)
    )
    if values.shape != index.shape:
        raise PatternError(
            f"there are {values.shape[0] if values.dim() else 1} weights for {index.shape[0]} ids."
        )
    pattern = Pattern(index[None], (n,))
    return SparseTensor(pattern.canonical(), pattern.arrange(values))


class SparseRows(Dataset[Any]):
    """The rows of a sparse matrix (a SparseTensor, or scipy's) as sparse vectors, with their targets if given.

    >>> rows = SparseRows(SparseTensor.from_dense(torch.eye(3)), torch.tensor([0, 1, 2]))
    >>> rows[1][0].shape
    torch.Size([3])
    """

    def __init__(self, matrix: Any, targets: Sequence[Any] | Tensor | None = None) -> None:
        S = matrix if isinstance(matrix, SparseTensor) else SparseTensor.from_scipy(matrix)
        if S.pattern.ndim != 2 or S.batch_dims:
            raise PatternError(f"SparseRows takes a sparse matrix, not {tuple(S.shape)}.")
        if targets is not None and len(targets) != S.shape[0]:
            raise PatternError(f"there are {len(targets)} targets for {S.shape[0]} rows.")
        S = S.coalesce()
        self.ptr, self.col, self.values = S.pattern.ptr, S.pattern.col, S.values().detach()
        self.size, self.targets = tuple(S.shape), targets

    def __len__(self) -> int:
        return self.size[0]

    def __getitem__(self, i: int) -> Any:
        if not -len(self) <= i < len(self):
            raise IndexError(f"row {i} of {len(self)}")
        i %= len(self)
        part = slice(int(self.ptr[i]), int(self.ptr[i + 1]))
        row = SparseTensor(Pattern.sorted(self.col[None, part], self.size[1:2]), self.values[part])
        return row if self.targets is None else (row, self.targets[i])
