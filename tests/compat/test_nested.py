"""Nested tensors of the strided layout: rows of their own lengths, one after the other in one memory."""

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


def scaled(y: torch.Tensor) -> None:
    y.mul_(0.5)


def through_data(y: torch.Tensor) -> None:
    y.data.mul_(0.5)


def a_row(y: torch.Tensor) -> None:
    with torch.no_grad():
        y.unbind()[1].mul_(0.5)


def through_the_values(y: torch.Tensor) -> None:
    with torch.no_grad():
        y.values().mul_(0.5)


WRITES = [scaled, through_data, a_row, through_the_values]


@pytest.mark.parametrize("write", WRITES)
def test_a_harmful_write_is_told_with_its_line(write: Callable[[torch.Tensor], None]) -> None:
    x = rows()
    with gradmend.watch():
        y = x * 2
        z = y * y
        write(y)
        with pytest.raises(gradmend.ConflictError) as raised:
            total(z).backward()
    conflict = raised.value.conflict
    assert conflict.saved.tensor.name == "y"
    assert conflict.writes[0].site.user.function == write.__name__


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("turned", [False, True], ids=["as made", "transposed"])
def test_a_harmful_write_is_healed(write: Callable[[torch.Tensor], None], turned: bool) -> None:
    parts = [torch.rand(2, 3), torch.rand(4, 3)]
    x = torch.nested.nested_tensor(parts, requires_grad=True)
    with gradmend.heal() as session:
        y = x * 2
        kept = y.transpose(1, 2) if turned else y
        z = kept * kept
        write(y)
        total(z.transpose(1, 2) if turned else z).backward()
    assert session.outcome == "healed"
    assert x.grad is not None
    torch.testing.assert_close(list(x.grad.unbind()), [8 * part for part in parts])


def test_a_nested_variable_is_no_hindrance_to_another_story() -> None:
    beside = rows()
    layer = torch.nn.Linear(3, 3)
    with gradmend.heal() as session:
        out = layer(torch.ones(1, 3, requires_grad=True))
        with torch.no_grad():
            layer.weight.mul_(2)
        out.sum().backward()
    assert session.outcome == "healed" and beside.is_nested
