"""A conflict found again is not told anew, but one that differs in anything is."""

from __future__ import annotations

import torch
from torch import nn

import gradmend
from gradmend.model import Conflict


def square(n: int, dtype: torch.dtype = torch.float32, times: int = 1) -> Conflict:
    x = torch.ones(n, dtype=dtype, requires_grad=True)
    with gradmend.heal() as session:
        y = x * 1
        z = (y**2).sum()
        for _ in range(times):
            y.add_(1)
        z.backward()
    return session.conflicts[0]


def test_the_same_is_the_same() -> None:
    one, other = (square(3) for _ in range(2))
    assert one == other


def test_shape_dtype_and_how_often_are_its_own() -> None:
    one, other, double = square(3), square(5), square(3, torch.float64)
    assert (one.saved.tensor.shape, other.saved.tensor.shape) == ((3,), (5,))
    assert (one.saved.tensor.dtype, double.saved.tensor.dtype) == ("float32", "float64")
    assert [w.times for c in (one, square(3, times=4)) for w in c.writes] == [1, 4]
    assert one.healed_bytes == 12 and other.healed_bytes == 20


def test_the_program_says_which_module_it_was() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    names = []
    for layer in (first, second):
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        with gradmend.heal() as session:
            out = layer(torch.ones(1, 3, requires_grad=True)).sum()
            for p in layer.parameters():
                p.grad = torch.ones_like(p)
            optimizer.step()
            out.backward()
        names.append(session.conflicts[0].saved.tensor.name)
        del layer, optimizer
    assert names[0] != names[1] or all(name == "layer.weight" for name in names)
