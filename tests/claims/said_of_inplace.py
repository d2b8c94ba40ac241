"""Programs behind what people say of in-place operations, and how each is tried."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import gradmend

Program = Callable[[torch.Tensor], Any]
MODIFIED = "modified by an inplace operation"


def leaf(values: Sequence[float] = (1.0, 2.0, 3.0)) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def gradient(program: Program, x: torch.Tensor) -> torch.Tensor:
    program(x)
    assert x.grad is not None
    return x.grad


def harmless(program: Program, right: Sequence[float]) -> None:
    """It runs everywhere, is right everywhere, and nobody says a word of it."""
    expected = torch.tensor(right, dtype=torch.float64)
    torch.testing.assert_close(gradient(program, leaf()), expected)
    for context in (gradmend.watch(), gradmend.heal()):
        with context as session:
            torch.testing.assert_close(gradient(program, leaf()), expected)
        assert session.outcome == "clean"
        assert session.conflicts == []


def harmful(program: Program, right: Sequence[float], *, silent: bool = False) -> None:
    """PyTorch raises, or is silently wrong; watch() names the line marked `# here`; heal() is right."""
    expected = torch.tensor(right, dtype=torch.float64)
    if silent:
        assert not torch.allclose(gradient(program, leaf()), expected)
    else:
        with pytest.raises(RuntimeError, match=MODIFIED):
            program(leaf())
    with pytest.raises(gradmend.ConflictError) as stopped, gradmend.watch():
        program(leaf())
    conflict = stopped.value.conflict
    assert conflict.kind == ("silent" if silent else "error")
    assert [c.line for c in conflict.culprits[:1]] == [line_of(program)]
    assert f"line {line_of(program)}" in str(stopped.value)
    with gradmend.heal() as session:
        torch.testing.assert_close(gradient(program, leaf()), expected)
    assert session.outcome == "healed"


def line_of(program: Program) -> int:
    lines, first = inspect.getsourcelines(program)
    (at,) = [i for i, line in enumerate(lines) if line.rstrip().endswith("# here")]
    return first + at
