"""Graphs: learnable edge weights, and the convolution that uses an adjacency."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gradmend.sparse.errors import SparseError
from gradmend.sparse.nn.weight import SparseWeight
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor


def adjacency(name: str, A: Any) -> SparseTensor:
    """The first argument of a graph layer: torch's own sparse tensors are taken too."""
    if isinstance(A, SparseTensor):
        return A
    if isinstance(A, Tensor) and A.layout is not torch.strided:
        return SparseTensor.from_torch(A)
    what = f"a dense tensor of {tuple(A.shape)}" if isinstance(A, Tensor) else f"{type(A).__name__}"
    raise SparseError(
        f"{name} takes the adjacency first, a SparseTensor, then the features: it was given {what}."
    )


class EdgeWeights(SparseWeight):
    """One trainable number per edge, starting at 1; `normalize` makes each row's weights a softmax."""

    def __init__(self, pattern: Pattern, normalize: bool = False) -> None:
        places = pattern.canonical()
        super().__init__(places, torch.ones(places.nnz, device=places.device))
        self.normalize = normalize

    def forward(self) -> SparseTensor:
        weights = super().forward()
        return weights.softmax(1) if self.normalize else weights


class GraphConv(nn.Module):
    """x -> A (x W) + b: features mixed by a dense W, then gathered along the edges of a sparse A."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, reduce: str = "sum") -> None:
        super().__init__()
        self.lin = nn.Linear(in_features, out_features, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.reduce = reduce

    def forward(self, A: SparseTensor, x: Tensor) -> Tensor:
        out: Tensor = adjacency("GraphConv", A).propagate(self.lin(x), self.reduce)
        return out if self.bias is None else out + self.bias
