"""Writes that step a version counter and change no value are nobody's fault; those that do change one are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gradmend


def _function(in_forward: Callable[[Any], Any], in_backward: Callable[[Any], Any]) -> Any:
    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            in_forward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            in_backward(grad)
            return grad * 2

    return Doubles


def _nothing(t: torch.Tensor) -> None:
    pass


def _reshape_a_view(t: torch.Tensor) -> None:
    t.unsqueeze(-1).unsqueeze_(-1)


def _add_nothing(t: torch.Tensor) -> None:
    t.add_(0)


def _double(t: torch.Tensor) -> None:
    t.mul_(2)


@torch.jit.script
def _double_unseen(t: torch.Tensor) -> torch.Tensor:
    return t.mul_(2)


def _reshape_and_double_unseen(t: torch.Tensor) -> None:
    _reshape_a_view(t)
    _double_unseen(t)


def _gradient(function: Any) -> torch.Tensor:
    """Two branches get one and the same gradient; the custom one is made last, and so runs first."""
    x = torch.ones(3, requires_grad=True)
    h = x * 3
    other = h * 5
    ((other + function.apply(h)) * 1.0).sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("still", [_reshape_a_view, _add_nothing])
def test_a_still_write_in_forward(still: Callable[[Any], None]) -> None:
    with gradmend.watch() as session:
        grad = _gradient(_function(still, _nothing))
    assert torch.equal(grad, torch.full((3,), 21.0))
    assert not [c for c in session if c.kind != "refused-but-right"]


def test_a_view_of_the_gradient_reshaped_in_place() -> None:
    with gradmend.watch() as session:
        grad = _gradient(_function(_nothing, _reshape_a_view))
    assert torch.equal(grad, torch.full((3,), 21.0))
    assert not session.conflicts


@pytest.mark.parametrize("write", [_double, _double_unseen, _reshape_and_double_unseen])
def test_a_write_that_changes_the_input_is_told(write: Callable[[Any], Any]) -> None:
    with pytest.raises(gradmend.ConflictError, match="GM206"), gradmend.watch():
        _gradient(_function(write, _nothing))


@pytest.mark.parametrize("write", [_double, _double_unseen, _reshape_and_double_unseen])
def test_a_write_that_changes_a_shared_gradient_is_told(write: Callable[[Any], Any]) -> None:
    assert not torch.equal(_gradient(_function(_nothing, write)), torch.full((3,), 21.0))  # plainly wrong
    with pytest.raises(gradmend.ConflictError, match="GM207"), gradmend.watch():
        _gradient(_function(_nothing, write))


def test_a_batch_norm_called_twice_in_training_is_nothing_to_tell() -> None:
    """Its running statistics are saved, written by the second call without a step, and read by no backward."""
    norm = torch.nn.BatchNorm1d(3)
    x = torch.randn(4, 3, requires_grad=True)
    with gradmend.watch() as session:
        (norm(x).pow(2).sum() + norm(x * 2).pow(3).sum()).backward()
    assert not session.conflicts


def test_running_statistics_that_backward_reads_are_told() -> None:
    norm = torch.nn.BatchNorm1d(3).eval()
    x = torch.randn(4, 3, requires_grad=True)
    with gradmend.watch():
        loss = norm(x).pow(2).sum()
        norm.train()(x.detach() * 3)
        with pytest.raises(gradmend.ConflictError):
            loss.backward()
