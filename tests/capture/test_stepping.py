"""While one of torch's own optimizers steps and nobody would listen, its methods are torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gradmend
from gradmend.capture import stepping
from gradmend.capture.taps import hub, switch


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test runner has threads of its own, beside which the taps stay on; and other tests may have left graphs."""
    monkeypatch.setattr(stepping.threading, "active_count", lambda: 1)
    hub.LEDGER.settle()
    hub.LEDGER.bury()
    monkeypatch.setattr(hub.LEDGER, "timelines", {})
    hub.awake.discard("saves")


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


@pytest.mark.parametrize("layers", [2, 12])
@pytest.mark.parametrize("mode", ["watch", "install"])
def test_taps_come_off_where_there_are_many_writes(layers: int, mode: str) -> None:
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
        try:
            _train(model, optimizer)
            assert optimizer.tapped is not many
            assert _is_tapped("mul_")
        finally:
            gradmend.uninstall()
    assert not _is_tapped("mul_")


def test_a_live_save_keeps_them_on_and_the_step_is_found() -> None:
    model = _model(12)
    optimizer = Looking(model.parameters(), lr=0.1)
    with gradmend.watch() as session:
        later = model(torch.ones(2, 3)).square().sum()
        _train(model, optimizer)
        assert optimizer.tapped
        with pytest.raises(gradmend.ConflictError):
            later.backward()
    assert [c.rule for c in session.conflicts] == ["GM104"]


def test_beside_another_thread_they_stay_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping.threading, "active_count", lambda: 2)
    model = _model(12)
    optimizer = Looking(model.parameters(), lr=0.1)
    with gradmend.watch():
        _train(model, optimizer)
        assert optimizer.tapped


def test_a_step_that_raised_is_over_at_the_next_save() -> None:
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
    assert not switch._lifted
