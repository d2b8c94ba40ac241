"""Spheres, cubes and rings: a 3-D point cloud on a grid of 64^3, by convolutions that see only the places with points.

python examples/sparse_point_cloud.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sparse_curve import draw, options, steps
from torch import Tensor, nn

from gradmend.sparse.nn import (
    MapBatchNorm,
    MapGlobalPool,
    MapSequential,
    SparseFeatureMap,
    StridedConv3d,
    SubmanifoldConv3d,
)

SHAPES = ("sphere", "cube", "ring")


def surface(kind: int, count: int, g: torch.Generator) -> Tensor:
    """Points of a surface around 0, about 1 large."""
    u = torch.rand(count, 3, generator=g) * 2 - 1
    if kind == 0:
        return F.normalize(u)
    if kind == 1:
        face = torch.randint(0, 3, (count, 1), generator=g)
        return u.scatter(1, face, u.gather(1, face).sign())
    angle, small = torch.rand(2, count, generator=g) * 2 * torch.pi
    away = 0.8 + 0.3 * small.cos()
    return torch.stack([away * angle.cos(), away * angle.sin(), 0.3 * small.sin()], 1)


def clouds(count: int, side: int, seed: int) -> tuple[SparseFeatureMap, Tensor]:
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 3, (count,), generator=g)
    points = []
    for i, kind in enumerate(label.tolist()):
        turn, _ = torch.linalg.qr(torch.randn(3, 3, generator=g))
        size = side * (0.15 + 0.1 * torch.rand(1, generator=g))
        at = side / 2 + (torch.rand(3, generator=g) - 0.5) * side * 0.3
        place = (surface(kind, 800, g) @ turn * size + at).long().clamp(0, side - 1)
        points.append(torch.cat([torch.full((800, 1), i), place], 1))
    every = torch.cat(points)
    return SparseFeatureMap.from_points(
        every, torch.ones(every.shape[0], 1), (side,) * 3, count, reduce="mean"
    ), label


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b in ((1, 16), (16, 24), (24, 32)):
            layers += [SubmanifoldConv3d(a, b), MapBatchNorm(b), nn.ReLU(), StridedConv3d(b, b), nn.ReLU()]
        self.body, self.pool, self.head = MapSequential(*layers), MapGlobalPool("max"), nn.Linear(32, 3)

    def forward(self, x: SparseFeatureMap) -> Tensor:
        return self.head(self.pool(self.body(x)))


def main(words: list[str] | None = None) -> list[float]:
    parser = options(__doc__, "sparse_point_cloud", 80)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    given = parser.parse_args(words)
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    losses: list[float] = []
    right: list[float] = []
    for i in steps(given.steps, lambda: f"loss {losses[-1]:.3f}, right {right[-1]:.0%}"):
        x, label = clouds(given.batch, given.side, i)
        optimizer.zero_grad()
        out = net(x)
        loss = F.cross_entropy(out, label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        right.append((out.argmax(1) == label).double().mean().item())
    last = right[-10:]
    print(f"{x}: {sum(last) / len(last):.1%} of the last clouds, none seen before, were right")
    draw(given.out, "Point clouds: training loss", {"loss": losses})
    return losses


if __name__ == "__main__":
    main()
