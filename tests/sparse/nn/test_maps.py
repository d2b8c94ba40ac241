"""Sparse feature maps against dense convolutions with the same weights, at the places that are stored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradmend.sparse import PatternError, SparseError
from gradmend.sparse.kernels import convolve as kernel
from gradmend.sparse.nn import (
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

SPACE = {2: (7, 9), 3: (5, 6, 7)}
F64: dict[str, Any] = {"dtype": torch.float64}


@pytest.fixture(params=["compiled", "plain"])
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(kernel, "SMALL", 0 if request.param == "compiled" else float("inf"))
    monkeypatch.setattr(kernel, "_FEW", 0 if request.param == "compiled" else float("inf"))
    return request.param


def a_map(
    dims: int, channels: int = 5, dtype: torch.dtype = torch.float64, seed: int = 0
) -> SparseFeatureMap:
    g = torch.Generator().manual_seed(seed)
    space = SPACE[dims]
    index = (torch.rand(2, *space, generator=g) < 0.3).nonzero()
    index = index[torch.randperm(index.shape[0], generator=g)]  # in any order
    features = torch.randn(index.shape[0], channels, generator=g, dtype=dtype)
    return SparseFeatureMap.from_points(index, features, space, images=2)


def at(dense: Tensor, x: SparseFeatureMap) -> Tensor:
    return dense.movedim(1, -1)[tuple(x.pattern.indices())]


CASES: dict[str, tuple[int, Any, Any]] = {
    "submanifold 2-D": (
        2,
        lambda c: SubmanifoldConv2d(5, c, 3, **F64),
        lambda c: nn.Conv2d(5, c, 3, padding=1, **F64),
    ),
    "submanifold 3-D": (
        3,
        lambda c: SubmanifoldConv3d(5, c, 3, **F64),
        lambda c: nn.Conv3d(5, c, 3, padding=1, **F64),
    ),
    "dilated": (
        2,
        lambda c: SubmanifoldConv2d(5, c, (3, 5), dilation=(2, 1), **F64),
        lambda c: nn.Conv2d(5, c, (3, 5), padding=(2, 2), dilation=(2, 1), **F64),
    ),
    "strided 2-D": (
        2,
        lambda c: StridedConv2d(5, c, 3, 2, 1, **F64),
        lambda c: nn.Conv2d(5, c, 3, 2, 1, **F64),
    ),
    "strided 3-D": (
        3,
        lambda c: StridedConv3d(5, c, (3, 2, 2), (2, 2, 1), (1, 0, 1), **F64),
        lambda c: nn.Conv3d(5, c, (3, 2, 2), (2, 2, 1), (1, 0, 1), **F64),
    ),
    "stride with gaps": (
        2,
        lambda c: StridedConv2d(5, c, 2, 3, **F64),
        lambda c: nn.Conv2d(5, c, 2, 3, **F64),
    ),
    "transposed 2-D": (
        2,
        lambda c: TransposedConv2d(5, c, 3, 2, 1, 1, **F64),
        lambda c: nn.ConvTranspose2d(5, c, 3, 2, 1, 1, **F64),
    ),
    "transposed 3-D": (
        3,
        lambda c: TransposedConv3d(5, c, 2, 2, **F64),
        lambda c: nn.ConvTranspose3d(5, c, 2, 2, **F64),
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("channels", [4, 7, 33])
def test_convolutions_are_the_dense_ones(road: str, case: str, channels: int) -> None:
    torch.manual_seed(0)
    dims, make, make_twin = CASES[case]
    ours, twin = make(channels), make_twin(channels)
    twin.load_state_dict(ours.state_dict())  # the same names and shapes
    x = a_map(dims)
    leaf = x.features.detach().clone().requires_grad_()
    dense = x.to_dense().detach().requires_grad_()
    out, want = ours(x.with_features(leaf)), twin(dense)
    torch.testing.assert_close(out.features, at(want, out))
    assert out.shape == want.shape
    if "sub" not in case and "dilated" not in case:
        # Every place that an input reaches is there: all else is the bias.
        rest = want - ours.bias.view(-1, *[1] * dims)
        assert ((rest.abs() > 1e-9).any(1).sum() <= out.pattern.nnz).item()
        torch.testing.assert_close(out.with_features(out.features - ours.bias).to_dense(), rest)
    weights = torch.randn_like(out.features)
    (out.features * weights).sum().backward()
    (at(want, out) * weights).sum().backward()
    torch.testing.assert_close(leaf.grad, at(dense.grad, x))
    torch.testing.assert_close(ours.weight.grad, twin.weight.grad)
    torch.testing.assert_close(ours.bias.grad, twin.bias.grad)


def test_a_transposed_convolution_returns_to_given_places(road: str) -> None:
    x = a_map(3)
    down, up = StridedConv3d(5, 6, 2, 2, **F64), TransposedConv3d(6, 5, 2, 2, **F64)
    back = up(down(x), like=x)
    dense = nn.ConvTranspose3d(6, 5, 2, 2, output_padding=(1, 0, 1), **F64)
    dense.load_state_dict(up.state_dict())
    assert back.pattern == x.pattern
    full = dense(down(x).to_dense())
    torch.testing.assert_close(back.features, at(full, x))
    with pytest.raises(PatternError, match="does not come from places"):
        up(x.with_features(torch.zeros(x.pattern.nnz, 6, dtype=torch.float64)), like=x)


def test_derivatives_of_derivatives(road: str) -> None:
    x = a_map(2, channels=2)
    layer = SubmanifoldConv2d(2, 2, 3, **F64)

    def f(features: Tensor, weight: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"weight": weight}, (x.with_features(features),)).features

    from gradmend.sparse.nn.maps import kernel_map
    from gradmend.sparse.nn.maps.convolve import convolve

    km = kernel_map.submanifold(x.pattern, layer.window)
    X = torch.randn(km.inputs, 2, dtype=torch.float64, requires_grad=True)
    W = torch.randn(9, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: convolve(a, b, km), (X, W))
    assert torch.autograd.gradgradcheck(lambda a, b: convolve(a, b, km), (X, W))
    assert f(x.features, layer.weight.detach()).shape == x.features.shape


class Net(nn.Module):
    """Submanifold, strided, norm, activation, pool and head; dense or sparse with the same parameters."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.sparse = sparse
        self.a = (SubmanifoldConv2d(3, 8, 3) if sparse else nn.Conv2d(3, 8, 3, padding=1)).double()
        self.b = (StridedConv2d(8, 8, 2, 2) if sparse else nn.Conv2d(8, 8, 2, 2)).double()
        self.head = nn.Linear(8, 4).double()

    def forward(self, x: Any) -> Tensor:
        if self.sparse:
            h = self.b(self.a(x).map(torch.tanh)).map(torch.tanh)
            return self.head(MapGlobalPool("sum")(h))
        # The twin computes everywhere and then masks to the places that the sparse net has.
        places = x.to_dense().abs().sum(1, keepdim=True) > 0
        h = self.a(x.to_dense()).tanh() * places
        reached = F.max_pool2d(F.pad(places.double(), (0, 0, 0, 0)), 2) > 0
        h = self.b(h).tanh() * reached
        return self.head(h.sum((2, 3)))


def test_a_hundred_steps_are_those_of_the_dense_net() -> None:
    torch.manual_seed(0)
    ours, twin = Net(True), Net(False)
    twin.load_state_dict(ours.state_dict())
    maps = [a_map(2, 3, seed=i) for i in range(4)]
    losses = []
    for net in (ours, twin):
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        seen = []
        for i in range(100):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(maps[i % 4]), torch.tensor([i % 4, (i + 1) % 4]))
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        losses.append(seen)
    torch.testing.assert_close(losses[0], losses[1])
    assert losses[0][-1] < losses[0][0]


@pytest.mark.parametrize("dims", [2, 3])
def test_pools(dims: int) -> None:
    x = a_map(dims)
    dense = x.to_dense()
    places = x.with_features(torch.ones_like(x.features)).to_dense()
    deep = dense.masked_fill(places == 0, -torch.inf)
    biggest = (F.max_pool2d if dims == 2 else F.max_pool3d)(deep, 3, 2, 1)
    mean = (F.avg_pool2d if dims == 2 else F.avg_pool3d)(dense, 2)
    got = MapMaxPool(3, 2, 1)(x)
    torch.testing.assert_close(got.features, at(biggest, got))
    got = MapAvgPool(2)(x)
    torch.testing.assert_close(got.features, at(mean, got))
    torch.testing.assert_close(got.to_dense(), mean)
    filled = MapAvgPool(2, filled=True)(x)
    share = (F.avg_pool2d if dims == 2 else F.avg_pool3d)(places, 2)
    torch.testing.assert_close(filled.features, at(mean / share, filled))
    whole = tuple(range(2, 2 + dims))
    torch.testing.assert_close(MapGlobalPool("sum")(x), dense.sum(whole))
    torch.testing.assert_close(MapGlobalPool("max")(x), deep.amax(whole))
    torch.testing.assert_close(MapGlobalPool("mean")(x), dense.sum(whole) / places.sum(whole))


def test_pointwise_layers_and_conversions() -> None:
    x = a_map(2)
    again = SparseFeatureMap.from_dense(x.to_dense())
    assert again.pattern == x.pattern and torch.equal(again.features, x.features)
    norm = MapBatchNorm(5).double()
    torch.testing.assert_close(norm(x).features.mean(0), torch.zeros(5, dtype=torch.float64))
    assert 0 < (MapDropout(0.5)(x).features == 0).double().mean() < 1
    torch.testing.assert_close((x + x).features, 2 * x.features)
    other = a_map(2, seed=1)
    torch.testing.assert_close((x + other).to_dense(), x.to_dense() + other.to_dense())
    net = MapSequential(SubmanifoldConv2d(5, 4, **F64), nn.ReLU(), OnFeatures(nn.Linear(4, 2).double()))
    assert net(x).channels == 2 and net(x).pattern == x.pattern
    assert x.cat(x).channels == 10
    twice = torch.tensor([[0, 1, 1], [0, 1, 1]])
    assert SparseFeatureMap.from_points(twice, torch.ones(2, 1), (3, 3)).features.item() == 2
    assert SparseFeatureMap.from_points(twice, torch.ones(2, 1), (3, 3), reduce="mean").features.item() == 1


def test_maps_without_places_and_16_bits() -> None:
    none = SparseFeatureMap.from_points(
        torch.empty(0, 3, dtype=torch.int64), torch.empty(0, 5), (4, 4), images=2
    )
    for layer in (SubmanifoldConv2d(5, 3), StridedConv2d(5, 3), TransposedConv2d(5, 3)):
        assert layer(none).features.shape == (0, 3)
    x = a_map(2, dtype=torch.float32)
    layer = SubmanifoldConv2d(5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        low = layer(x).features
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), layer(x).features, atol=0.1, rtol=0.1)


def test_wrong_maps_are_told() -> None:
    x = a_map(2)
    with pytest.raises(SparseError, match="takes 4 channels in 3 dimensions, not 5 in 2"):
        SubmanifoldConv3d(4, 4)(x)
    with pytest.raises(SparseError, match="odd kernel sizes"):
        SubmanifoldConv2d(4, 4, 2)
    with pytest.raises(SparseError, match="takes a SparseFeatureMap"):
        SubmanifoldConv2d(4, 4)(torch.ones(2, 2))
    with pytest.raises(PatternError, match="points are whole numbers"):
        SparseFeatureMap.from_points(torch.ones(2, 3), torch.ones(2, 1), (3, 3))
    with pytest.raises(PatternError):
        SparseFeatureMap.from_points(torch.tensor([[0, 5, 1]]), torch.ones(1, 1), (3, 3))
    with pytest.raises(SparseError, match="larger than a padded map"):
        StridedConv2d(5, 2, 20, **F64)(x)
    with pytest.raises(SparseError, match="stride is a whole number"):
        StridedConv2d(5, 2, stride=0)


def test_a_sequence_knows_who_sees_features() -> None:
    torch.manual_seed(0)
    x = a_map(2)
    norm, spectral = nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm
    for wrap in (norm, spectral, lambda layer: layer):
        conv, linear = wrap(SubmanifoldConv2d(5, 4, **F64)).eval(), wrap(nn.Linear(4, 3, **F64)).eval()
        inner = nn.Sequential(
            nn.ReLU(), nn.Sequential(conv, nn.BatchNorm1d(4, **F64).eval()), nn.Tanh(), linear
        )
        got = MapSequential(nn.Identity(), inner, MapGlobalPool("sum"), nn.Linear(3, 2, **F64))
        h = conv(x.map(torch.relu)).map(inner[1][1]).map(torch.tanh).map(linear)
        torch.testing.assert_close(got(x), got[3](MapGlobalPool("sum")(h)))
    plain = nn.Sequential(nn.Linear(5, 3, **F64), nn.ReLU())
    seen: list[Any] = []
    plain.register_forward_hook(lambda module, args, out: seen.append(args[0].shape))
    assert MapSequential(plain)(x).channels == 3 and seen == [x.features.shape]
    mixed = nn.Sequential(SubmanifoldConv2d(5, 4, **F64), nn.ReLU())
    mixed.register_forward_hook(lambda module, args, out: None)
    with pytest.raises(SparseError, match="make it a MapSequential"):
        MapSequential(mixed)(x)


@pytest.mark.parametrize("kind", [SubmanifoldConv2d, SubmanifoldConv3d, StridedConv3d, TransposedConv2d])
def test_errors_name_the_class_that_was_called(kind: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\W.*strange"):
        kind(4, 16, 3, strange=1)
    if kind in (SubmanifoldConv2d, SubmanifoldConv3d):
        with pytest.raises(SparseError, match=rf"^{kind.__name__} takes no padding: .* padding \(1, 1"):
            kind(4, 16, 3, padding=1)
        with pytest.raises(SparseError, match=rf"^{kind.__name__} has odd kernel sizes"):
            kind(4, 16, 2)
    assert kind(4, 16, 3, bias=False).bias is None
