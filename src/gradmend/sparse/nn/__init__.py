"""Modules whose sparse weights train: the values are an ordinary nn.Parameter, the pattern goes along."""

from gradmend.sparse.nn import ranks as _ranks
from gradmend.sparse.nn.attention import GraphAttention, SparseAttention, sparse_attention
from gradmend.sparse.nn.clip import clip_grad_norm_, clip_grad_value_, get_total_norm
from gradmend.sparse.nn.conv import SparseConv2d
from gradmend.sparse.nn.edit import edit_grad
from gradmend.sparse.nn.embedding import SparseEmbedding, SparseEmbeddingBag
from gradmend.sparse.nn.graph import EdgeWeights, GraphConv
from gradmend.sparse.nn.linear import SparseLinear
from gradmend.sparse.nn.maps import (
    MapAvgPool,
    MapBatchNorm,
    MapDropout,
    MapGlobalPool,
    MapMaxPool,
    MapSequential,
    OnFeatures,
    SparseFeatureMap,
    StridedConv2d,
    StridedConv3d,
    SubmanifoldConv2d,
    SubmanifoldConv3d,
    TransposedConv2d,
    TransposedConv3d,
)
from gradmend.sparse.nn.weight import SparseWeight

_ranks.install()

__all__ = [
    "EdgeWeights",
    "GraphAttention",
    "GraphConv",
    "MapAvgPool",
    "MapBatchNorm",
    "MapDropout",
    "MapGlobalPool",
    "MapMaxPool",
    "MapSequential",
    "OnFeatures",
    "SparseAttention",
    "SparseConv2d",
    "SparseEmbedding",
    "SparseEmbeddingBag",
    "SparseFeatureMap",
    "SparseLinear",
    "SparseWeight",
    "StridedConv2d",
    "StridedConv3d",
    "SubmanifoldConv2d",
    "SubmanifoldConv3d",
    "TransposedConv2d",
    "TransposedConv3d",
    "clip_grad_norm_",
    "clip_grad_value_",
    "edit_grad",
    "get_total_norm",
    "sparse_attention",
]
