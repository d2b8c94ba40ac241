"""e3nn: rotation-equivariant networks, whose tensor products are generated and scripted code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from world_runs import Case, Training, World, training

pytest.importorskip("e3nn")
pytestmark = pytest.mark.world
world = World("e3nn")


@world.case("FullyConnectedTensorProduct, gate, batch norm")
def _product() -> Training:
    from e3nn import nn, o3

    scalars, gates, gated = o3.Irreps("4x0e"), o3.Irreps("2x0e"), o3.Irreps("2x1o")
    gate = nn.Gate(scalars, [torch.tanh], gates, [torch.sigmoid], gated)
    product = o3.FullyConnectedTensorProduct("4x0e + 2x1o", "1x0e + 1x1o", gate.irreps_in)
    norm, head = nn.BatchNorm(gate.irreps_out), o3.Linear(gate.irreps_out, "1x0e")
    model = torch.nn.ModuleList([product, gate, norm, head])
    x, y = torch.randn(8, 10), torch.randn(8, 4)
    return training(model, lambda: head(norm(gate(product(x, y)))).square().mean())


@world.case("convolution over a point cloud, with forces")
def _convolution() -> Training:
    from e3nn import nn, o3

    harmonics = o3.Irreps.spherical_harmonics(2)
    product = o3.FullyConnectedTensorProduct("4x0e", harmonics, "4x0e + 2x1o", shared_weights=False)
    radial = nn.FullyConnectedNet([3, 8, product.weight_numel], torch.nn.functional.silu)
    head = o3.Linear("4x0e + 2x1o", "1x0e")
    model = torch.nn.ModuleList([product, radial, head])
    source, target = torch.randint(6, (2, 20))
    keep = source != target
    source, target = source[keep], target[keep]
    features, points = torch.randn(6, 4), torch.randn(6, 3)

    def loss() -> torch.Tensor:
        at = points.clone().requires_grad_()
        edge = at[source] - at[target]
        weight = radial(torch.stack([edge.norm(dim=1) ** k for k in range(3)], 1))
        around = o3.spherical_harmonics(harmonics, edge, normalize=True)
        messages = product(features[source], around, weight)
        energy = head(torch.zeros(6, messages.shape[1]).index_add(0, target, messages)).square().sum()
        (force,) = torch.autograd.grad(energy, at, create_graph=True)
        return energy + force.square().mean()

    return training(model, loss)


@world.case("Norm, Extract, FullTensorProduct")
def _more() -> Training:
    from e3nn import nn, o3

    first = o3.Linear("3x0e + 3x1o", "2x0e + 2x1o")
    product = o3.FullTensorProduct("2x0e + 2x1o", "2x0e + 2x1o")
    size, taken = o3.Norm(product.irreps_out), nn.Extract(product.irreps_out, ["4x0e"], [(0,)])
    x = torch.randn(5, 12)

    def loss() -> torch.Tensor:
        h = first(x)
        z = product(h, h)
        return size(z).mean() + taken(z)[0].square().mean()

    return training(first, loss)


@pytest.mark.parametrize("case", world.cases, ids=str)
def test_trains_as_it_does_alone(case: Case, check: Callable[[Case], None]) -> None:
    check(case)
