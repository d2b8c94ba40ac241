"""From torch_geometric's edge_index: a pair of rows, source and target, and a weight per edge."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.errors import PatternError
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor


def from_edge_index(edge_index: Tensor, weight: Tensor | None = None, num_nodes: Any = None) -> SparseTensor:
    """A[source, target] = weight (1 if not given), edges given twice summed. `A.t() @ x` sums over neighbours
    that point to a node, `A @ x` over those it points to. `num_nodes` is a number or a pair."""
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise PatternError(f"edge_index is (2, edges), not {tuple(edge_index.shape)}.")
    if num_nodes is None:
        num_nodes = int(edge_index.max()) + 1 if edge_index.numel() else 0
    size = (num_nodes, num_nodes) if isinstance(num_nodes, int) else tuple(num_nodes)
    if weight is None:
        weight = torch.ones(edge_index.shape[1], device=edge_index.device)
    return SparseTensor(Pattern(edge_index, size), weight)
