"""A limit: PyTorch unpacks a saved value also for a gradient that nobody asked for, and watch() stops there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gradmend


def by_grad(o: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(o.sum(), w)[0]


def by_inputs(o: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    o.sum().backward(inputs=[w])
    assert w.grad is not None
    return w.grad


def gradient(ask: Callable[..., torch.Tensor], scope: Any) -> list[float]:
    w = torch.ones(2, requires_grad=True)
    d = torch.full((2,), 5.0, requires_grad=True)
    with scope:
        o = w * d
        w.data.mul_(2)  # only the gradient of `d` would need it
        return ask(o, w).tolist()


@pytest.mark.parametrize("ask", [by_grad, by_inputs])
@pytest.mark.filterwarnings("ignore::gradmend.GradmendWarning")
def test_watch_stops_although_the_gradient_is_right(ask: Callable[..., torch.Tensor]) -> None:
    assert gradient(ask, contextlib.nullcontext()) == [5.0, 5.0]
    assert gradient(ask, gradmend.heal()) == [5.0, 5.0]
    with pytest.raises(gradmend.ConflictError):
        gradient(ask, gradmend.watch())
