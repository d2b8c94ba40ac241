"""A custom forward that writes what it gave to save_for_backward: backward gets the changed value, and PyTorch says nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gradmend


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.pow_(3)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2


class Marked(Cube):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x.pow_(3)


class InPlaceExp(torch.autograd.Function):
    """Its backward wants the result, saved once it is there."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        x.exp_()
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * ctx.saved_tensors[0]


class FilledLater(torch.autograd.Function):
    """A buffer of forward's own is handed over before it is filled."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        ctx.save_for_backward(out)
        return torch.exp(x, out=out)

    backward = InPlaceExp.backward


def run(function: Any) -> torch.Tensor:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    function.apply(w * 1).sum().backward()
    assert w.grad is not None
    return w.grad


def test_pytorch_computes_with_the_changed_value() -> None:
    assert run(Cube).tolist() == run(Marked).tolist() == [3.0, 192.0]  # right: 3 and 12


@pytest.mark.parametrize("context", [gradmend.watch, gradmend.heal])
def test_it_stops(context: Callable[[], Any]) -> None:
    with context(), pytest.raises(gradmend.ConflictError) as raised:
        run(Cube)
    assert raised.value.conflict.rule == "GM206"
    assert raised.value.conflict.writes[0].op == "pow_"


def test_heal_stops_a_backward_after_it_was_left() -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    with gradmend.heal():
        out = Cube.apply(w * 1)
    with pytest.raises(gradmend.ConflictError, match=r"save a copy: ctx.save_for_backward\(x.clone\(\)\)"):
        out.sum().backward()


def test_the_audit_does_not_call_it_right() -> None:
    with gradmend.audit() as verdict:
        grad = run(Cube)
    assert grad.tolist() == [3.0, 192.0]
    assert verdict.is_wrong


@pytest.mark.parametrize("context", [gradmend.watch, gradmend.heal])
def test_a_marked_one_may_be_meant_and_is_told_once(context: Callable[[], Any]) -> None:
    with context() as session, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            run(Marked)
    assert ["after ctx.save_for_backward" in str(one.message) for one in told] == [True]
    assert session.outcome == "clean"


@pytest.mark.parametrize("context", [gradmend.watch, gradmend.heal])
@pytest.mark.parametrize("function", [InPlaceExp, FilledLater])
def test_what_is_right_is_quiet(function: Any, context: Callable[[], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", gradmend.GradmendWarning)
        with context() as session:
            torch.testing.assert_close(run(function), torch.tensor([1.0, 2.0]).exp())
    assert session.outcome == "clean"
