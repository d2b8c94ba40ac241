"""A node that only holds an error for later has no number of its own: its words must arrive as plain PyTorch says them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.autograd.function import once_differentiable

import gradmend


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return 2 * g * ctx.saved_tensors[0]


def once() -> None:
    x, w = torch.tensor(3.0, requires_grad=True), torch.tensor(1.0, requires_grad=True)
    (g,) = torch.autograd.grad(Square.apply(x), x, w, create_graph=True)
    g.backward()


def scattered() -> None:
    """prod over two zeros, differentiated twice."""
    base, src = torch.tensor([1.0], requires_grad=True), torch.zeros(2, requires_grad=True)
    w = torch.ones(1, requires_grad=True)
    y = torch.scatter_reduce(base, 0, torch.tensor([0, 0]), src, "prod")
    gradients = torch.autograd.grad(y, (base, src), w, create_graph=True)
    gradients[1].sum().backward()


def said(program: Callable[[], None], scope: Any) -> tuple[str, str]:
    with pytest.raises(RuntimeError) as caught, scope:
        program()
    return type(caught.value).__name__, str(caught.value).splitlines()[0]


@pytest.mark.parametrize("program", [once, scattered])
def test_the_words_are_pytorchs(program: Callable[[], None]) -> None:
    plain = said(program, nullcontext())
    assert said(program, gradmend.watch()) == plain
    assert said(program, gradmend.heal()) == plain
    gradmend.install()
    try:
        assert said(program, nullcontext()) == plain
    finally:
        gradmend.uninstall()
