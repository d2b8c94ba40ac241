"""Pooling of sparse feature maps."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gradmend.sparse.errors import SparseError
from gradmend.sparse.nn.maps import kernel_map
from gradmend.sparse.nn.maps.conv import Size, many
from gradmend.sparse.nn.maps.feature_map import SparseFeatureMap
from gradmend.sparse.nn.maps.kernel_map import KernelMap, Window


class _Pool(nn.Module):
    def __init__(self, kernel_size: Size = 2, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def _window(self, dims: int) -> Window:
        size = many("kernel_size", self.kernel_size, dims, 1)
        stride = size if self.stride is None else many("stride", self.stride, dims, 1)
        return Window(size, stride, many("padding", self.padding, dims, 0), (1,) * dims)

    def forward(self, x: SparseFeatureMap) -> SparseFeatureMap:
        window = self._window(len(x.space))
        places, km = kernel_map.strided(x.pattern, window)
        return SparseFeatureMap(places, self._pooled(x.features, km, window))

    def _pooled(self, features: Tensor, km: KernelMap, window: Window) -> Tensor:
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MapMaxPool(_Pool):
    """The largest of the features that a window holds. Places without features don't compete."""

    def _pooled(self, features: Tensor, km: KernelMap, window: Window) -> Tensor:
        index = km.target[:, None].expand(-1, features.shape[1])
        start = features.new_full((km.outputs, features.shape[1]), -torch.inf)
        return start.scatter_reduce(0, index, features.index_select(0, km.source), "amax")


class MapAvgPool(_Pool):
    """The mean over a window, empty places counted as zeros (torch's AvgPool); `filled=True`: over what it holds."""

    def __init__(
        self, kernel_size: Size = 2, stride: Size | None = None, padding: Size = 0, *, filled: bool = False
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.filled = filled

    def _pooled(self, features: Tensor, km: KernelMap, window: Window) -> Tensor:
        total = features.new_zeros(km.outputs, features.shape[1])
        total = total.index_add(0, km.target, features.index_select(0, km.source))
        if not self.filled:
            return total / math.prod(window.size)
        count = torch.bincount(km.target, minlength=km.outputs).to(features.dtype)
        return total / count[:, None]


class MapGlobalPool(nn.Module):
    """One row for each image: "sum", "mean" or "max" of its features; zeros for an image without any."""

    def __init__(self, reduce: str = "mean") -> None:
        super().__init__()
        if reduce not in ("sum", "mean", "max"):
            raise SparseError(f'a global pool is "sum", "mean" or "max", not {reduce!r}.')
        self.reduce = reduce

    def forward(self, x: SparseFeatureMap) -> Tensor:
        image = x.pattern._indices[0]
        start = x.features.new_zeros(x.images, x.channels)
        if self.reduce == "max":
            index = image[:, None].expand(-1, x.channels)
            return start.scatter_reduce(0, index, x.features, "amax", include_self=False)
        total = start.index_add(0, image, x.features)
        if self.reduce == "sum":
            return total
        return total / torch.bincount(image, minlength=x.images).clamp_(min=1).to(total.dtype)[:, None]

    def extra_repr(self) -> str:
        return self.reduce
