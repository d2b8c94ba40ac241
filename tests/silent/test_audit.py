"""The audit leaves the program as it is, and says yes or no about its gradients."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from silent_programs import ALL, Program
from test_silent_quiet import ALL as QUIET

import gradmend
import warm
from gradmend.api.auditing import Audit


@pytest.mark.parametrize("program", ALL, ids=lambda p: p.name)
def test_silent_programs_are_told_and_left_as_they_are(program: Program) -> None:
    plain = program.run()
    with Audit(10) as verdict:
        got = program.run()
    assert torch.equal(got, plain)
    assert verdict.is_wrong


@pytest.mark.parametrize("run", QUIET, ids=lambda run: run.__name__)
def test_right_programs_get_a_no(run) -> None:  # type: ignore[no-untyped-def]
    plain = run()
    with Audit(10) as verdict:
        got = run()
    assert torch.equal(got, plain)
    assert verdict.calls > 0
    assert verdict.leaves
    assert not verdict.is_wrong
    assert verdict.unable == []


def test_how_wrong_is_relative_to_the_right_gradient() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with Audit(1) as verdict:
        h = x.clone()
        y = h * h
        h.data.add_(1)  # [4, 6] instead of [2, 4]
        y.sum().backward()
    (leaf,) = verdict.wrong
    assert leaf.name == "x"
    assert leaf.worst == pytest.approx(0.5)


_SCRIPT = """
import torch
net = torch.nn.Linear(2, 2)
for step in range(4):
    out = net(torch.ones(1, 2)).tanh()
    loss = out.sum()
    if {wrong}:
        out.data.mul_(0.5)
    loss.backward()
print("done")
"""


@pytest.mark.parametrize(
    ("wrong", "word", "code"), [("step == 1", "is wrong in 1 of", 1), ("False", "is right in", 0)]
)
def test_command(tmp_path: Path, wrong: str, word: str, code: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT.format(wrong=wrong))
    report = tmp_path / "out.json"
    command = [
        sys.executable,
        "-m",
        "gradmend",
        "run",
        "--audit",
        "--audit-calls",
        "3",
        "--report",
        str(report),
    ]
    done = warm.run([*command, str(script)])
    assert done.returncode == code
    assert done.stdout == "done\n"
    assert "gradmend audit: the gradient" in done.stderr and word in done.stderr
    audit = json.loads(report.read_text())["stats"]["audit"]
    assert audit["calls"] == 3
    assert audit["wrong"] is (code == 1)
    if code:
        assert "net.weight" in done.stderr


def test_command_refuses_heal(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    done = warm.run(
        [sys.executable, "-m", "gradmend", "run", "--audit", "--heal", tmp_path / "x.py"],
    )
    assert done.returncode == 2
    assert "--audit goes without --heal" in done.stderr


def test_a_verdict_is_printed_in_words() -> None:
    x = torch.ones(3, requires_grad=True)
    with Audit(10) as verdict:
        y = x.exp()
        y.data.add_(1)
        y.sum().backward()
    assert "the gradient of 1 of 1 tensor is wrong" in str(verdict) and "[GM201]" in str(verdict)


def test_a_conflict_shows_itself_in_one_short_line() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with gradmend.audit() as verdict:
        h = x * 2
        h.data[0] = 5.0
        (h**2).sum().backward()
    assert verdict.is_wrong and not verdict.wrong
    ((_, conflict),) = verdict.stopped
    line = conflict.culprits[0].line
    assert repr(conflict) == f"<Conflict GM210 silent at {__file__}:{line}>"
