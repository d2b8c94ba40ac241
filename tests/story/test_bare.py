"""A story that fails by a mistake of ours: the conflict is told all the same, and what heals goes on healing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gradmend
from gradmend.story import linking, telling


def program() -> torch.Tensor:
    w = torch.ones(3, requires_grad=True)
    y = (w * 2).exp()
    y.add_(1)
    y.sum().backward()
    assert w.grad is not None
    return w.grad


def _mistaken(*_: Any, **__: Any) -> Any:
    raise LookupError("no such thing")


@pytest.fixture(
    params=[(linking, "by_node"), (linking, "_link"), (telling, "tell")], ids=["names", "link", "words"]
)
def mistake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    home, name = request.param
    linking._linked.clear()
    monkeypatch.setattr(home, name, _mistaken)
    return name


def line(function: Callable[..., object], at: int) -> int:
    return function.__code__.co_firstlineno + at


def test_watch_stops_with_the_lines(mistake: str) -> None:
    with pytest.raises(gradmend.ConflictError, match="no such thing") as told, gradmend.watch():
        program()
    conflict = told.value.conflict
    assert conflict.kind == "error" and conflict.culprits[0].file == __file__
    assert conflict.culprits[0].line == line(program, 3)
    assert f"line {line(program, 3)}" in str(told.value) and f"line {line(program, 4)}" in str(told.value)


def test_heal_goes_on(mistake: str) -> None:
    with warnings.catch_warnings(record=True) as heard, gradmend.heal() as session:
        warnings.simplefilter("always")
        grad = program()
    assert torch.equal(grad, 2 * torch.full((3,), 2.0).exp())
    assert session.outcome == "healed" and len(heard) == 1
    if mistake != "tell":
        assert "no such thing" in session.conflicts[0].notes[0]
