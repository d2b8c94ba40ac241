"""Sparse feature maps: features at some places of a grid, in two or three dimensions, and the layers between them."""

from gradmend.sparse.nn.maps.conv import (
    StridedConv2d,
    StridedConv3d,
    SubmanifoldConv2d,
    SubmanifoldConv3d,
    TransposedConv2d,
    TransposedConv3d,
)
from gradmend.sparse.nn.maps.feature_map import SparseFeatureMap
from gradmend.sparse.nn.maps.pointwise import MapBatchNorm, MapDropout, MapSequential, OnFeatures
from gradmend.sparse.nn.maps.pool import MapAvgPool, MapGlobalPool, MapMaxPool

__all__ = [
    "MapAvgPool",
    "MapBatchNorm",
    "MapDropout",
    "MapGlobalPool",
    "MapMaxPool",
    "MapSequential",
    "OnFeatures",
    "SparseFeatureMap",
    "StridedConv2d",
    "StridedConv3d",
    "SubmanifoldConv2d",
    "SubmanifoldConv3d",
    "TransposedConv2d",
    "TransposedConv3d",
]
