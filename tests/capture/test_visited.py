"""Which nodes a backward ran, by the numbers that the compiled part takes when they save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradmend
from gradmend.capture import backwards


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x * y
        ctx.save_for_backward(x, y, z)
        return z

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y, _ = ctx.saved_tensors
        return g * y, g * x


class Graph(torch.autograd.Function):
    """Its forward makes nodes of its own before it saves."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            out = (inner * inner).exp().sin()
        ctx.save_for_backward(out.detach())
        return out.detach() * 1

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (out,) = ctx.saved_tensors
        return g * out


def layers(x: torch.Tensor) -> torch.Tensor:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 4), nn.LayerNorm(4))
    return net(x).softmax(-1)


def written(x: torch.Tensor) -> torch.Tensor:
    c = x * 1
    c.mul_(x * 2)
    c[0] = x[1] * 3
    return c


PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "layers": layers,
    "written": written,
    "lstm": lambda x: nn.LSTM(4, 4, 2)(x[None])[0],
    "gru": lambda x: nn.GRU(4, 4)(x[None])[0],
    "conv": lambda x: nn.Conv2d(1, 2, 3)(x[None, None]),
    "attention": lambda x: nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    "linalg": lambda x: torch.linalg.svd(x)[1] + torch.linalg.inv(x).sum(),
    "reduced": lambda x: torch.logsumexp(x, 0) + x.prod() + x.std() + x.cumprod(0).sum() + x.sort()[0].sum(),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "loss": lambda x: nn.functional.cross_entropy(x, torch.arange(4)),
    "product": lambda x: Product.apply(x, x * 2),
    "graph": lambda x: Graph.apply(x * 2).exp(),
}


_next = torch._C._autograd._get_sequence_nr  # type: ignore[attr-defined]


def as_the_nodes_say(program: Callable[[torch.Tensor], torch.Tensor]) -> set[int]:
    found: set[int] = set()

    def unpack(t: torch.Tensor) -> torch.Tensor:
        found.add(torch._C._current_autograd_node()._sequence_nr())  # type: ignore[union-attr]
        return t

    x = torch.randn(4, 4, requires_grad=True)
    first = _next()
    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, unpack):
        program(x).sum().backward()
    return {number - first for number in found}


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_are_those_of_the_nodes(name: str) -> None:
    x = torch.randn(4, 4, requires_grad=True)
    with gradmend.watch():
        first = _next()
        PROGRAMS[name](x).sum().backward()
        visited = {number - first for number in backwards.history[-1].visited}
    assert visited == as_the_nodes_say(PROGRAMS[name])
