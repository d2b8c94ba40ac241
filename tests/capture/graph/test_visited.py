"""Which nodes a backward ran, by the numbers that are taken when they save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradmend
from gradmend.capture.graph import calls as graph_calls
from gradmend.capture.graph import nodes as graph_nodes
from gradmend.capture.hooks import backward_calls
from gradmend.story.failures import nodes


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
    "powered": lambda x: (x * 2).pow_(2).sin().pow_(3),
    "loss": lambda x: nn.functional.cross_entropy(x, torch.arange(4)),
    "product": lambda x: Product.apply(x, x * 2),
    "graph": lambda x: Graph.apply(x * 2).exp(),
}


_next = torch._C._autograd._get_sequence_nr  # type: ignore[attr-defined]


def kept_below(out: torch.Tensor) -> tuple[set[int], set[int]]:
    """The numbers of all nodes, and of those that show what they keep: a story can tell only of these."""
    every = list(nodes.walk([out]))
    return {nodes.sequence(n) for n in every}, {nodes.sequence(n) for n in every if nodes.slots(n)}


def as_the_nodes_say(program: Callable[[torch.Tensor], torch.Tensor]) -> set[int]:
    found: set[int] = set()

    def unpack(t: torch.Tensor) -> torch.Tensor:
        found.add(torch._C._current_autograd_node()._sequence_nr())  # type: ignore[union-attr]
        return t

    x = torch.randn(4, 4, requires_grad=True)
    first = _next()
    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, unpack):
        out = program(x).sum()
        _, keepers = kept_below(out)
        out.backward()
    return {number - first for number in found & keepers}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_knows_which_nodes_asked(name: str) -> None:
    x = torch.randn(4, 4, requires_grad=True)
    with gradmend.watch():
        first = _next()
        out = PROGRAMS[name](x).sum()
        every, keepers = kept_below(out)
        beside = PROGRAMS[name](x).sum()  # of the same lines, and not backed through
        others, kept_beside = kept_below(beside)
        out.backward()
        call = backward_calls.history[-1]
    asked = {n for n in keepers if graph_calls.who_ran(n, [call], every) is not None}
    assert {n - first for n in asked} == as_the_nodes_say(PROGRAMS[name])
    assert asked
    assert not [n for n in kept_beside if graph_calls.who_ran(n, [call], others) is not None]


def test_no_node_gets_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of nodes are freed by recursion, so a clean backward asks for none but its root."""
    asked: list[Any] = []
    monkeypatch.setattr(graph_nodes, "_current", lambda: asked.append(1))
    x = torch.randn(4, 4, requires_grad=True)
    with gradmend.watch():
        layers(x).sum().backward()
    with gradmend.heal():
        written(x).sum().backward()
    assert not asked
