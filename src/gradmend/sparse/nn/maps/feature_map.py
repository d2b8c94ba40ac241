"""Features at some places of a grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.errors import PatternError, SparseError
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor


class SparseFeatureMap:
    """A row of features for each place (image, then coordinates) that has some; all other places are zero.

    >>> points = torch.tensor([[0, 1, 1], [0, 2, 3], [1, 0, 0]])  # image, row, column
    >>> SparseFeatureMap.from_points(points, torch.ones(3, 8), (4, 4)).to_dense().shape
    torch.Size([2, 8, 4, 4])

    Places are a Pattern, in ascending order; features are an ordinary tensor, [places, channels], and all that is
    differentiated. Layers find the neighbours of places once for each pattern, and keep what they found.
    """

    def __init__(self, pattern: Pattern, features: Tensor) -> None:
        if not isinstance(pattern, Pattern) or pattern.ndim < 2:
            raise PatternError(
                "a feature map takes a Pattern of (images, *space): use SparseFeatureMap.from_points."
            )
        if not isinstance(features, Tensor) or features.dim() != 2 or features.shape[0] != pattern.given:
            got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise PatternError(f"features are [{pattern.given} places, channels], not {got}.")
        if features.device != pattern.device:
            raise PatternError(f"places are on {pattern.device}, and features on {features.device}.")
        self.pattern = pattern.canonical()
        self.features = pattern.arrange(features)

    @classmethod
    def from_points(
        cls,
        points: Any,
        features: Tensor,
        space: Sequence[int],
        images: int | None = None,
        reduce: str = "sum",
    ) -> SparseFeatureMap:
        """points [n, 1 + dimensions]: the image and the coordinates of each; those of one place are summed or averaged."""
        points = torch.as_tensor(points, device=features.device)
        if points.dim() != 2 or points.shape[1] != 1 + len(space) or points.is_floating_point():
            raise PatternError(
                f"points are whole numbers [n, {1 + len(space)}], an image and {len(space)} coordinates, not "
                f"{points.dtype} {tuple(points.shape)}."
            )
        if reduce not in ("sum", "mean"):
            raise SparseError(f'points of one place are reduced by "sum" or "mean", not {reduce!r}.')
        if points.shape[0] and (low := int(points[:, 0].min())) < 0:
            raise PatternError(f"a point is in image {low}: images are numbered from 0.")
        if images is not None and images < 0:
            raise PatternError(f"there are 0 images or more, not {images}.")
        if images is None:
            images = int(points[:, 0].max()) + 1 if points.shape[0] else 0
        made = cls(Pattern(points.t().contiguous(), (images, *space)), features)
        if reduce == "mean" and made.pattern.nnz < points.shape[0]:
            ones = torch.ones(points.shape[0], dtype=features.dtype, device=features.device)
            count = Pattern(points.t().contiguous(), (images, *space)).arrange(ones)
            made.features = made.features / count[:, None]
        return made

    @classmethod
    def from_dense(cls, x: Tensor) -> SparseFeatureMap:
        """[images, channels, *space]: the places where some channel is not zero."""
        if x.dim() < 3:
            raise SparseError(f"a dense feature map is [images, channels, *space], not {tuple(x.shape)}.")
        rows = x.movedim(1, -1)
        index = (rows.detach() != 0).any(-1).nonzero()
        return cls(Pattern(index.t().contiguous(), tuple(rows.shape[:-1])), rows[tuple(index.t())])

    @property
    def space(self) -> tuple[int, ...]:
        return self.pattern.size[1:]

    @property
    def images(self) -> int:
        return self.pattern.size[0]

    @property
    def channels(self) -> int:
        return self.features.shape[1]

    @property
    def shape(self) -> torch.Size:
        """That of the dense map."""
        return torch.Size((self.images, self.channels, *self.space))

    def points(self) -> Tensor:
        """[places, 1 + dimensions], a copy."""
        return self.pattern.indices().t().contiguous()

    def with_features(self, features: Tensor) -> SparseFeatureMap:
        """Other features at the same places."""
        return SparseFeatureMap(self.pattern, features)

    def map(self, f: Callable[..., Tensor], *args: Any, **kwargs: Any) -> SparseFeatureMap:
        """f of the features: `x.map(torch.relu)`. What is not stored stays zero."""
        return self.with_features(f(self.features, *args, **kwargs))

    def __add__(self, other: SparseFeatureMap) -> SparseFeatureMap:
        """Places of either; a residual connection has the same, and costs one addition."""
        if not isinstance(other, SparseFeatureMap) or other.shape != self.shape:
            raise SparseError("a feature map is added to one of its own shape.")
        if other.pattern == self.pattern:
            return self.with_features(self.features + other.features)
        return from_tensor(self.to_sparse() + other.to_sparse())

    def cat(self, other: SparseFeatureMap) -> SparseFeatureMap:
        """Channels of both, at the same places."""
        if not isinstance(other, SparseFeatureMap) or other.pattern != self.pattern:
            raise SparseError("cat takes two feature maps with the same places.")
        return self.with_features(torch.cat([self.features, other.features], 1))

    def to_sparse(self) -> SparseTensor:
        """[images, *space, channels], the channels dense."""
        return SparseTensor(self.pattern, self.features)

    def to_dense(self) -> Tensor:
        """[images, channels, *space]."""
        out = self.features.new_zeros(*self.pattern.size, self.channels)
        return out.index_put(tuple(self.pattern.indices()), self.features).movedim(-1, 1)

    def to(self, *args: Any, **kwargs: Any) -> SparseFeatureMap:
        features = self.features.to(*args, **kwargs)
        return SparseFeatureMap(self.pattern.to(features.device), features)

    def __repr__(self) -> str:
        shape = " x ".join(str(n) for n in self.space)
        return (
            f"SparseFeatureMap({self.images} images, {self.channels} channels, {shape}, {self.pattern.nnz} places, "
            f"{100 * self.pattern.density:.3g}% full)"
        )


def from_tensor(S: SparseTensor) -> SparseFeatureMap:
    """[images, *space, channels] with dense channels -> a feature map."""
    return SparseFeatureMap(S._pattern, S._values)
