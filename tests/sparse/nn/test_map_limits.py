"""Feature maps in spaces near the end of int64: the same numbers as in a small space, or one clear error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradmend.sparse import PatternError, SparseError
from gradmend.sparse.kernels import convolve as kernel
from gradmend.sparse.nn import (
    MapMaxPool,
    SparseFeatureMap,
    StridedConv2d,
    StridedConv3d,
    SubmanifoldConv2d,
    SubmanifoldConv3d,
    TransposedConv2d,
    TransposedConv3d,
)

N, SMALL = 2**21 - 1, 31  # N^3 is just below 2^63; both are odd, and of one rest to 3
F64: dict[str, Any] = {"dtype": torch.float64}


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(kernel, "SMALL", 0 if request.param == "compiled" else float("inf"))
    monkeypatch.setattr(kernel, "_FEW", 0 if request.param == "compiled" else float("inf"))
    return request.param


def corners(n: int) -> tuple[Tensor, Tensor]:
    """Points around the first and the last place of a cube, which a window can't see together."""
    g = torch.Generator().manual_seed(0)
    near = (torch.rand(6, 6, 6, generator=g) < 0.4).nonzero()
    far = n - 6 + (torch.rand(6, 6, 6, generator=g) < 0.4).nonzero()
    points = torch.cat([near, far])
    features = torch.randn(len(points), 3, generator=g, dtype=torch.float64)
    return torch.cat([torch.zeros(len(points), 1, dtype=torch.int64), points], 1), features


LAYERS: dict[str, Any] = {
    "submanifold": lambda: SubmanifoldConv3d(3, 4, **F64),
    "dilated": lambda: SubmanifoldConv3d(3, 4, 3, dilation=2, **F64),
    "strided": lambda: StridedConv3d(3, 4, 3, 2, 1, **F64),
    "gaps": lambda: StridedConv3d(3, 4, 3, 3, 2, **F64),
    "pool": lambda: MapMaxPool(3, 2, 1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_space_that_int64_just_numbers_is_as_a_small_one(name: str) -> None:
    torch.manual_seed(0)
    layer, made = LAYERS[name](), []
    for n in (N, SMALL):
        points, features = corners(n)
        leaf = features.clone().requires_grad_()
        out = layer(SparseFeatureMap.from_points(points, leaf, (n, n, n)))
        weights = torch.randn(out.features.shape, generator=torch.Generator().manual_seed(1), **F64)
        grads = torch.autograd.grad((out.features * weights).sum(), [leaf, *layer.parameters()])
        made.append((out, grads))
    (big, big_grads), (small, small_grads) = made
    torch.testing.assert_close(big.features, small.features)
    torch.testing.assert_close(big_grads, small_grads)
    moved = big.points()[:, 1:]
    moved = torch.where(moved > SMALL, moved - big.space[0] + small.space[0], moved)
    assert torch.equal(moved, small.points()[:, 1:])


def test_a_transposed_convolution_near_the_end() -> None:
    torch.manual_seed(0)
    layer, made = TransposedConv3d(3, 4, 3, 1, 0, **F64), []
    for n in (N - 2, SMALL):
        points, features = corners(n)
        x = SparseFeatureMap.from_points(points, features, (n, n, n))
        out = layer(x)
        same = layer(x, like=out)
        assert torch.equal(out.features, same.features) and out.pattern == same.pattern
        made.append(out)
    torch.testing.assert_close(made[0].features, made[1].features)


@pytest.mark.parametrize("dilation", [2**24, 2**40, 2**61, 2**62, 2**70])
def test_offsets_that_lead_out_of_the_map_meet_nobody(dilation: int) -> None:
    points = torch.tensor([[0, 0, 0, 0], [0, 1, 0, 0], [0, 2, 5, 5]])
    features = torch.tensor([[1.0], [2.0], [3.0]])
    x = SparseFeatureMap.from_points(points, features, (2**20, 2**20, 2**20))
    layer = SubmanifoldConv3d(1, 1, 5, dilation=dilation, bias=False)
    nn.init.ones_(layer.weight)
    assert layer(x).features.flatten().tolist() == [1.0, 2.0, 3.0]
    empty = SparseFeatureMap.from_points(points[:0], features[:0], (2**20, 2**20, 2**20), images=1)
    assert layer(empty).features.shape == (0, 1)


def a_map(n: int = 9) -> SparseFeatureMap:
    return SparseFeatureMap.from_points(torch.tensor([[0, 1, 1], [0, 2, 3]]), torch.ones(2, 1), (n, n))


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (lambda: StridedConv2d(1, 1, 2, 1, 2**62), "can't be numbered by int64"),
        (lambda: StridedConv2d(1, 1, 2, 1, 2**70), "can't be numbered by int64"),
        (lambda: StridedConv2d(1, 1, 2, 1, 2**33), "the map that a convolution makes would have the shape"),
        (lambda: TransposedConv2d(1, 1, 2, 2**40), "the map that a transposed convolution makes would have"),
        (lambda: TransposedConv2d(1, 1, 2, 2**62), "can't be numbered by int64"),
        (lambda: TransposedConv2d(1, 1, 2, 2, 20), "a padding of 20 leaves nothing of a map of 18"),
    ],
)
def test_maps_that_int64_can_not_number_are_told(layer: Any, words: str) -> None:
    with pytest.raises(SparseError, match=words):
        layer()(a_map())


def test_places_that_a_padding_leaves_are_those_of_like() -> None:
    """Without `like` nothing is left of a map of one place; with it there is a place to return to."""
    like = SparseFeatureMap.from_points(torch.tensor([[0, 0, 0]]), torch.ones(1, 1), (1, 1))
    down, up = StridedConv2d(1, 1, 2, 2, 1), TransposedConv2d(1, 1, 2, 2, 1)
    back = up(down(like), like=like)
    assert back.space == (1, 1)
    torch.testing.assert_close(back.features, down(like).features * up.weight[0, 0, 1, 1] + up.bias)
    with pytest.raises(SparseError, match="like is a SparseFeatureMap, not Tensor"):
        up(like, like=torch.ones(1))


def test_wrong_numbers_are_told() -> None:
    for value in (1.5, "3", None, (3, 1.5), (3, 3, 3)):
        with pytest.raises(
            SparseError, match="kernel_size is a whole number of at least 1, or 2 of them, not"
        ):
            StridedConv2d(1, 1, kernel_size=value)
    with pytest.raises(SparseError, match="in_channels is a whole number of at least 0, not -1"):
        SubmanifoldConv2d(-1, 1)
    with pytest.raises(SparseError, match=r"out_channels is a whole number of at least 0, not 1\.5"):
        SubmanifoldConv2d(1, 1.5)  # type: ignore[arg-type]
    assert StridedConv2d(1, 1, kernel_size=[3, 2]).window.size == (3, 2)  # type: ignore[arg-type]
    point = torch.tensor([[-1, 1, 1]])
    with pytest.raises(PatternError, match="a point is in image -1: images are numbered from 0"):
        SparseFeatureMap.from_points(point, torch.ones(1, 1), (3, 3))
    with pytest.raises(PatternError, match="there are 0 images or more, not -1"):
        SparseFeatureMap.from_points(point.abs(), torch.ones(1, 1), (3, 3), images=-1)
