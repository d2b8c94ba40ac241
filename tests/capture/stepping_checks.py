"""What test_stepping.py checks, each in a process of its own: no other threads, and no graphs left by other tests."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

import gradmend
from gradmend.capture import stepping
from gradmend.capture.taps import switch


def _is_tapped(name: str) -> bool:
    return name in vars(torch.Tensor)


class Looking(torch.optim.SGD):
    """torch's own by its module, and it looks about while it steps."""

    __module__ = "torch.optim.looking"
    tapped: bool | None = None
    fails = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.tapped = _is_tapped("mul_")
        if self.fails:
            raise ValueError("in the middle of a step")
        super().step()


def _model(layers: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(3, 3) for _ in range(layers)))


def _train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 3)).square().sum().backward()
    optimizer.step()


def many_writes(layers: int, mode: str) -> None:
    model = _model(layers)
    optimizer = Looking(model.parameters(), lr=0.1)
    many = 2 * layers >= stepping._WORTH_IT
    if mode == "watch":
        with gradmend.watch():
            _train(model, optimizer)
            assert optimizer.tapped is not many
            assert _is_tapped("mul_")
    else:
        gradmend.install()
        _train(model, optimizer)
        assert optimizer.tapped is not many
        assert _is_tapped("mul_")
        gradmend.uninstall()
    assert not _is_tapped("mul_")


def live_save() -> None:
    model = _model(12)
    optimizer = Looking(model.parameters(), lr=0.1)
    with gradmend.watch() as session:
        later = model(torch.ones(2, 3)).square().sum()
        _train(model, optimizer)
        assert optimizer.tapped
        with pytest.raises(gradmend.ConflictError):
            later.backward()
    assert [c.rule for c in session.conflicts] == ["GM104"]


def beside_another_thread() -> None:
    model = _model(12)
    optimizer = Looking(model.parameters(), lr=0.1)
    done = threading.Event()
    threading.Thread(target=done.wait, daemon=True).start()
    with gradmend.watch():
        _train(model, optimizer)
        assert optimizer.tapped
    done.set()


def step_that_raised() -> None:
    model = _model(12)
    optimizer = Looking(model.parameters(), lr=0.1)
    with gradmend.watch():
        optimizer.fails = True
        with pytest.raises(ValueError, match="middle of a step"):
            _train(model, optimizer)
        assert not _is_tapped("mul_")
        y = torch.ones(2, requires_grad=True).exp()
        assert _is_tapped("mul_")
        y.mul_(2)
        with pytest.raises(gradmend.ConflictError) as told:
            y.sum().backward()
        assert told.value.conflict.rule == "GM101"
        optimizer.fails = True
        with pytest.raises(ValueError, match="middle of a step"):
            _train(model, optimizer)
    assert not _is_tapped("mul_")
    assert not switch.lifted
