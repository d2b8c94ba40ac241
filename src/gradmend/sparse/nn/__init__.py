"""Modules whose sparse weights train: the values are an ordinary nn.Parameter, the pattern goes along."""

from gradmend.sparse.nn import ranks as _ranks
from gradmend.sparse.nn.clip import clip_grad_norm_, clip_grad_value_, get_total_norm
from gradmend.sparse.nn.graph import EdgeWeights, GraphConv
from gradmend.sparse.nn.linear import SparseLinear
from gradmend.sparse.nn.weight import SparseWeight

_ranks.install()

__all__ = [
    "EdgeWeights",
    "GraphConv",
    "SparseLinear",
    "SparseWeight",
    "clip_grad_norm_",
    "clip_grad_value_",
    "get_total_norm",
]
