"""Programs under each policy: what plain PyTorch does, what watch() does, what heal() gives."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

import gradmend
from gradmend.model import Session

Program = Callable[[torch.Tensor], Any]


def start(*shape: int) -> torch.Tensor:
    """A float64 leaf holding 1, 2, 3, ..."""
    shape = shape or (4,)
    count = int(torch.Size(shape).numel())
    return torch.arange(1.0, count + 1, dtype=torch.float64).reshape(shape).requires_grad_()


def plain(program: Program, *shape: int) -> torch.Tensor:
    return _run(program, nullcontext(), shape)


def healed(program: Program, *shape: int) -> torch.Tensor:
    return _run(program, gradmend.heal(), shape)


def watched(program: Program, *shape: int) -> torch.Tensor:
    return _run(program, gradmend.watch(), shape)


def _run(program: Program, context: Any, shape: tuple[int, ...]) -> torch.Tensor:
    x = start(*shape)
    with context:
        program(x)
    assert x.grad is not None
    return x.grad


def healed_session(program: Program, *shape: int) -> tuple[torch.Tensor, Session]:
    x = start(*shape)
    with gradmend.heal() as session:
        program(x)
    assert x.grad is not None
    return x.grad, session
