"""The names that a user types after `gradmend.`: they are there, they complete, and they say what is wrong."""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import FunctionType

import pytest
import torch

import gradmend


@pytest.mark.parametrize("name", gradmend.__all__)
def test_every_name_is_there_and_listed(name: str) -> None:
    assert name in dir(gradmend)
    assert getattr(gradmend, name) is not None


def test_sparse_is_loaded_by_its_name_alone() -> None:
    program = (
        "import sys, gradmend\n"
        "assert not any(m.startswith('gradmend.sparse') for m in sys.modules)\n"
        "print(gradmend.sparse.__name__)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stdout == "gradmend.sparse\n", ran.stderr


def test_heal_is_a_function_with_a_signature() -> None:
    assert isinstance(gradmend.heal, FunctionType)
    assert list(inspect.signature(gradmend.heal).parameters) == ["budget", "paranoid", "retain"]


def test_bare_decorators() -> None:
    @gradmend.heal
    def healed(x: torch.Tensor) -> torch.Tensor:
        """Its own words."""
        y = x.exp()
        y += 1
        y.sum().backward()
        assert x.grad is not None
        return x.grad

    x = torch.zeros(3, requires_grad=True)
    assert healed(x).tolist() == [1.0] * 3
    assert healed.__name__ == "healed" and healed.__doc__ == "Its own words."

    @gradmend.watch
    def watched(x: torch.Tensor) -> None:
        y = x.exp()
        y += 1
        y.sum().backward()

    with pytest.raises(gradmend.ConflictError):
        watched(x)


@pytest.mark.parametrize("budget", ["x", "12 parsecs", -1, 1.5])
def test_a_budget_that_is_no_size(budget: object) -> None:
    with pytest.raises(gradmend.GradmendError, match="is not a size") as caught:
        gradmend.heal(budget=budget)  # type: ignore[call-overload]
    assert isinstance(caught.value, ValueError)


def test_audit_is_a_context() -> None:
    w = torch.ones(3, requires_grad=True)
    with gradmend.audit() as verdict:
        loss = (w * w).sum()
        w.data.mul_(0.9)
        loss.backward()
    assert verdict.is_wrong and verdict.calls == 1


def test_explain_takes_a_rule() -> None:
    assert gradmend.explain("gm101") == gradmend.explain("GM101")
    assert "GM101" in gradmend.explain("GM101")
    with pytest.raises(gradmend.GradmendError):
        gradmend.explain("GM999")


def test_saves_takes_the_function_itself() -> None:
    assert gradmend.saves(torch.exp) == gradmend.saves("exp")
    assert gradmend.saves(torch.exp).keeps == ("result",)


def test_above_a_generator_or_a_coroutine_it_says_what_to_do():
    def steps():
        yield 1

    async def step():
        return 1

    for function in (steps, step):
        for decorate in (gradmend.watch(), gradmend.heal()):
            with pytest.raises(gradmend.GradmendError, match="around the training step"):
                decorate(function)
