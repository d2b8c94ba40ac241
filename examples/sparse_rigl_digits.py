"""Digits by a network of which 95% is missing: RigL moves the entries to where they help.

    python examples/sparse_rigl_digits.py

Digits are drawn as seven segments on 16 x 16 pixels, moved and covered with noise.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sparse_curve import draw, options, steps
from torch import Tensor, nn

from gradmend.sparse.dynamic import RigL
from gradmend.sparse.nn import SparseLinear

SEGMENTS = ["abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg"]
LINES = {
    "a": (slice(0, 1), slice(0, 6)),
    "b": (slice(0, 5), slice(5, 6)),
    "c": (slice(5, 10), slice(5, 6)),
    "d": (slice(9, 10), slice(0, 6)),
    "e": (slice(5, 10), slice(0, 1)),
    "f": (slice(0, 5), slice(0, 1)),
    "g": (slice(4, 5), slice(0, 6)),
}


def glyphs() -> Tensor:
    made = torch.zeros(10, 10, 6)
    for digit, names in enumerate(SEGMENTS):
        for name in names:
            made[(digit, *LINES[name])] = 1
    return made


def batch(shapes: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 10, (count,), generator=g)
    at = torch.stack(
        [torch.randint(0, 7, (count,), generator=g), torch.randint(0, 11, (count,), generator=g)]
    )
    image = torch.zeros(count, 16, 16)
    row, col = torch.arange(10)[None, :, None] + at[0][:, None, None], torch.arange(6) + at[1][:, None, None]
    image[torch.arange(count)[:, None, None], row, col] = shapes[label]
    return (image + 0.3 * torch.randn(count, 16, 16, generator=g)).flatten(1), label


def main(words: list[str] | None = None) -> list[float]:
    parser = options(__doc__, "sparse_rigl_digits", 600)
    parser.add_argument("--density", type=float, default=0.05)
    given = parser.parse_args(words)
    shapes, curves = glyphs(), {}
    test = batch(shapes, 2000, 10**6)
    for name in ("RigL", "pattern as drawn"):
        torch.manual_seed(0)
        net = nn.Sequential(
            SparseLinear(256, 512, given.density), nn.ReLU(), SparseLinear(512, 256, given.density), nn.ReLU(),
            nn.Linear(256, 10),
        )  # fmt: skip
        optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
        scheduler = RigL(net, optimizer, every=20, until=given.steps * 3 // 4) if name == "RigL" else None
        losses: list[float] = []
        for i in steps(given.steps, lambda n=name, c=losses: f"{n}: loss {c[-1]:.3f}"):
            x, y = batch(shapes, 256, i)
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            losses.append(loss.item())
        right = (net(test[0]).argmax(1) == test[1]).double().mean()
        print(
            f"{name}: {right:.1%} of the test digits are right, with {1 - given.density:.0%} of the weights missing"
        )
        curves[name] = losses
    draw(given.out, f"Digits at {given.density:.0%} density: training loss", curves)
    return curves["RigL"]


if __name__ == "__main__":
    main()
