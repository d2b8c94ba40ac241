"""While an optimizer steps, those who only listen to the program's own writes are turned away."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from modes import Seeing
from torch import nn

import gradmend
from gradmend.capture import recorder
from gradmend.capture.taps import hub

EARS = {"listeners", "edits"}


class Looking(torch.optim.Optimizer):
    """It looks about while it steps."""

    heard: frozenset[str] | None = None
    fails = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.heard = frozenset(hub.awake & EARS)
        if self.fails:
            raise ValueError("in the middle of a step")
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.add_(p.grad, alpha=-0.1)


def _train(optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    sum(p.square().sum() for g in optimizer.param_groups for p in g["params"]).backward()
    optimizer.step()


@pytest.fixture
def optimizer() -> Looking:
    return Looking(nn.Linear(3, 3).parameters(), {})


@pytest.mark.parametrize("while_a_save_lives", [False, True])
def test_a_step_is_one_record(optimizer: Looking, while_a_save_lives: bool) -> None:
    with gradmend.watch():
        kept = torch.ones(2, requires_grad=True).exp() if while_a_save_lives else None
    gradmend.install()
    try:
        ring = recorder.current()
        assert ring is not None
        at = len(ring.ring)
        _train(optimizer)
        assert optimizer.heard == frozenset()
        assert "listeners" in hub.awake
        records = list(ring.ring)[at:]
        assert [op for op, _, _ in records] == ["Looking.step"]
        assert [p[:2] for p in recorder.unpacked(records[0][2])] == [
            (p.data_ptr(), p.nbytes) for p in optimizer.param_groups[0]["params"]
        ]
    finally:
        gradmend.uninstall()
    assert "listeners" not in hub.awake
    del kept


def test_a_mode_sees_the_step_and_not_us(optimizer: Looking) -> None:
    _train(optimizer)
    with Seeing() as plain:
        _train(optimizer)
    gradmend.install()
    try:
        with Seeing() as recorded:
            _train(optimizer)
    finally:
        gradmend.uninstall()
    assert recorded.names == plain.names


def test_a_closure_is_the_programs_own_code(optimizer: Looking) -> None:
    with gradmend.watch():
        optimizer.step(lambda: 0.0)
        assert optimizer.heard == {"edits"}
        optimizer.step()
        assert optimizer.heard == frozenset()
        assert "edits" in hub.awake


@pytest.mark.parametrize("layers", [2, 40])
def test_a_step_that_a_save_outlives_is_heard(layers: int) -> None:
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradmend.watch() as session:
        later = model(torch.ones(2, 3)).square().sum()
        _train(optimizer)
        with pytest.raises(gradmend.ConflictError):
            later.backward()
    assert [c.rule for c in session.conflicts] == ["GM104"]


def test_after_a_step_that_raised_the_next_save_wakes_them(optimizer: Looking) -> None:
    with gradmend.watch():
        optimizer.fails = True
        with pytest.raises(ValueError, match="middle of a step"):
            _train(optimizer)
        assert not hub.awake & EARS
        y = torch.ones(2, requires_grad=True).exp()
        assert "edits" in hub.awake
        y.mul_(2)
        with pytest.raises(gradmend.ConflictError) as told:
            y.sum().backward()
        assert told.value.conflict.rule == "GM101"
        with pytest.raises(ValueError, match="middle of a step"):
            _train(optimizer)
    assert not hub.awake & EARS
