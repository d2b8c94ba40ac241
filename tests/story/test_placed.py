"""Functions that torch.compile hands to a backend in Python: their lines, which Dynamo's graph does not have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gradmend

x = torch.linspace(0.1, 1, 3)


@torch.compile(backend="eager")
def scaled(w: torch.Tensor) -> torch.Tensor:
    h = torch.tanh(w * x)
    h.mul_(2)  # the write
    return h


@torch.compile(backend="eager")
def cut(w: torch.Tensor) -> torch.Tensor:
    y = (w * x).sigmoid()
    y[0] = 0.0  # the write
    return y


@torch.compile(backend="eager")
def twice(w: torch.Tensor) -> torch.Tensor:
    h = torch.tanh(w * x)
    h.mul_(2)
    h.mul_(3)
    return h


def line_of(text: str, after: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"def {after}"))
    return 1 + next(i for i in range(start, len(lines)) if text in lines[i])


@pytest.mark.parametrize("function", [scaled, cut])
def test_the_line_that_wrote(function: object) -> None:
    name = function.__name__  # type: ignore[attr-defined]
    w = torch.ones(3, requires_grad=True)
    with pytest.raises(gradmend.ConflictError) as told, gradmend.watch():
        function(w).sum().backward()  # type: ignore[operator]
    conflict = told.value.conflict
    at = conflict.writes[0].site.frames[0]
    assert (at.file, at.line) == (__file__, line_of("# the write", name))
    assert conflict.writes[0].tensor.name == ("h" if function is scaled else "y[0]")
    saved = conflict.saved.site.frames[0]
    assert (saved.file, saved.line) == (__file__, at.line - 1)


def test_of_two_such_lines_none_is_guessed() -> None:
    w = torch.ones(3, requires_grad=True)
    with pytest.raises(gradmend.ConflictError) as told, gradmend.watch():
        twice(w).sum().backward()
    user = told.value.conflict.writes[0].site.user
    assert user is not None and user.file == __file__ and user.line <= line_of("def twice", "twice")
