"""Limits that docs/silent.md names: wrong in PyTorch, and not told."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

import gradmend


@pytest.mark.parametrize("scope", [contextlib.nullcontext, gradmend.watch, gradmend.heal])
def test_one_memory_twice_in_a_foreach_call(scope: Any) -> None:
    x = torch.ones(3, requires_grad=True)
    with scope():
        y = x * 1
        torch._foreach_mul_([y[None], y], 2.0)
        y.sum().backward()
    assert x.grad is not None
    assert y[0].item() == 4.0
    assert x.grad[0].item() == 2.0  # 4 would be right


def test_one_by_one_is_right() -> None:
    x = torch.ones(3, requires_grad=True)
    with gradmend.watch() as session:
        y = x * 1
        for t in (y[None], y):
            t.mul_(2.0)
        y.sum().backward()
    assert x.grad is not None
    assert x.grad[0].item() == y[0].item() == 4.0
    assert session.outcome == "clean"
