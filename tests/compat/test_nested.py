"""Nested tensors: rows of their own lengths have no shape, no strides and no region."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gradmend


@pytest.fixture(autouse=True)
def _still() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "nested tensors is in prototype stage"
        yield


def rows() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], requires_grad=True)


def total(t: torch.Tensor) -> torch.Tensor:
    return torch.nested.to_padded_tensor(t, 0.0).sum()


def grads(x: torch.Tensor) -> list[list[float]]:
    assert x.grad is not None
    return [row.tolist() for row in x.grad.unbind()]


@pytest.mark.parametrize("context", [gradmend.watch, gradmend.heal])
def test_a_harmless_write_passes(context: Callable[[], Any]) -> None:
    x = rows()
    with context() as session:
        kept = x * x
        y = x * 2
        y.mul_(3.0)
        total(y + kept).backward()
    assert session.outcome == "clean"
    assert grads(x) == [[8.0] * 2, [8.0] * 3]


@pytest.mark.parametrize("context", [gradmend.watch, gradmend.heal])
def test_a_harmful_one_stops_and_tells_the_tensor(context: Callable[[], Any]) -> None:
    x = rows()
    with context():
        y = x * 2
        z = y * y
        y.mul_(0.5)
        with pytest.raises(gradmend.ConflictError, match="`y`, a nested tensor, was changed in place"):
            total(z).backward()


def test_a_nested_variable_is_no_hindrance_to_another_story() -> None:
    beside = rows()
    layer = torch.nn.Linear(3, 3)
    with gradmend.heal() as session:
        out = layer(torch.ones(1, 3, requires_grad=True))
        with torch.no_grad():
            layer.weight.mul_(2)
        out.sum().backward()
    assert session.outcome == "healed" and beside.is_nested
