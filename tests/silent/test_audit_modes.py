"""Three conflicts of one line under every policy: what holds for the first must hold for the second and third."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import gradmend
import warm
from gradmend.api.auditing import Audit

RIGHT = [2.0, 1.8, 1.62]  # of the forward that ran: 2 w
PLAIN = [1.8, 1.62, 1.458]  # what PyTorch makes of it, in silence


def three(write: Callable[[torch.Tensor], object]) -> list[float]:
    w = torch.ones(3, requires_grad=True)
    got = []
    for _ in range(3):
        loss = (w * w).sum()
        write(w)
        loss.backward()
        assert w.grad is not None
        got.append(w.grad[0].item())
        w.grad = None
    return got


def by_data(w: torch.Tensor) -> None:
    w.data.mul_(0.9)


def by_no_grad(w: torch.Tensor) -> None:
    with torch.no_grad():
        w.mul_(0.9)


def by_slices(w: torch.Tensor) -> None:
    for i in range(3):
        w.data[i] = w.data[i] * 0.9


WAYS = pytest.mark.parametrize("write", [by_data, by_no_grad, by_slices], ids=lambda f: f.__name__)


@WAYS
def test_heal_gives_each_its_own_value(write: Callable[[torch.Tensor], None]) -> None:
    with gradmend.heal() as session:
        got = three(write)
    assert got == pytest.approx(RIGHT)
    assert sum(c.times for c in session.conflicts) == 6  # w * w saves w twice
    assert session.outcome == "healed"


@pytest.mark.parametrize("paranoid", [False, True])
def test_watch_refuses_each(paranoid: bool) -> None:
    refused = 0
    with gradmend.watch(paranoid=paranoid) as session:
        w = torch.ones(3, requires_grad=True)
        for _ in range(3):
            loss = (w * w).sum()
            w.data.mul_(0.9)
            try:
                loss.backward()
            except gradmend.ConflictError:
                refused += 1
            w.grad = None
    assert refused == 3
    assert session.outcome == "conflict"


def test_install_lets_each_pass_as_pytorch_does() -> None:
    gradmend.install()
    try:
        assert three(by_data) == pytest.approx(PLAIN)
        told = 0
        for _ in range(3):
            y = torch.ones(3, requires_grad=True).exp()
            y += 1
            with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
                y.sum().backward()
            told += any("y += 1" in note for note in getattr(caught.value, "__notes__", ()))
        assert told == 3
    finally:
        gradmend.uninstall()


@pytest.mark.parametrize("calls", [1, 2, 10])
def test_an_audit_leaves_each_as_it_is(calls: int) -> None:
    """Also the calls past the audited ones."""
    with Audit(calls) as verdict:
        got = three(by_data)
    assert got == pytest.approx(PLAIN)
    (leaf,) = verdict.wrong
    assert (leaf.wrong, leaf.calls) == (min(calls, 3), min(calls, 3))


def test_an_audit_leaves_pytorchs_refusal_to_each() -> None:
    with Audit(10) as verdict:
        for _ in range(3):
            w = torch.ones(3, requires_grad=True)
            loss = (w * w).sum()
            with torch.no_grad():
                w.mul_(0.9)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
    assert len(verdict.unable) == 3


def test_an_audit_judges_only_its_own_saves() -> None:
    """A heal() inside an audit heals, and one around it goes on healing once the audit is over."""
    with gradmend.heal():
        with Audit(10) as verdict:
            assert three(by_data) == pytest.approx(PLAIN)
            with gradmend.heal():
                assert three(by_data) == pytest.approx(RIGHT)
        assert three(by_data) == pytest.approx(RIGHT)
    assert verdict.is_wrong


@pytest.mark.parametrize(("flag", "numbers"), [("--audit", PLAIN), ("--heal", RIGHT)])
def test_the_command_runs_each(flag: str, numbers: list[float], tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\nw = torch.ones(3, requires_grad=True)\nfor _ in range(3):\n    loss = (w * w).sum()\n"
        "    w.data.mul_(.9)\n    loss.backward()\n    print(w.grad[0].item())\n    w.grad = None\n"
    )
    run = warm.run(
        [sys.executable, "-m", "gradmend", "run", flag, str(program)],
    )
    assert [float(line) for line in run.stdout.split()] == pytest.approx(numbers), run.stderr
    if flag == "--audit":
        assert "in 3 of 3" in run.stderr
