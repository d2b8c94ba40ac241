"""A program that went on is told so: no error, nothing that fails, no advice to do what was done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import gradmend
from gradmend.cli.main import main
from gradmend.model import Conflict, Session
from gradmend.running.audit import once
from gradmend.running.output import healed_words, say, write
from gradmend.story.telling import tell


def healed(retain: bool = False) -> Session:
    x = torch.ones(3, requires_grad=True)
    with gradmend.heal(retain=retain) as found:
        y = x.exp()
        loss = y.sum()
        y.mul_(2)
        loss.backward()
        if retain:
            loss.backward()
    return found


def refused() -> Conflict:
    x = torch.ones(3, requires_grad=True)
    with gradmend.heal() as found:
        y = x.exp()
        y.add_(0)
        y.sum().backward()
    return found.conflicts[0]


def test_a_second_backward_is_no_overwritten_value() -> None:
    conflicts = healed(retain=True).conflicts
    assert {c.rule for c in conflicts} == {"GM101", "GM131"}
    words = healed_words(conflicts)
    assert words.startswith("healed 2 overwritten values at 1 line, ")
    assert words.endswith("1 second backward() went through a kept graph")
    (again,) = [c for c in conflicts if c.rule == "GM131"]
    assert not any("into it again" in span.label for span in tell(again, healed=True).spans)
    assert any("into it again" in span.label for span in tell(again).spans)


def test_heal_is_not_advised_where_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    session = Session("healed", [refused()])
    say(session, heals=True)
    under_heal = capsys.readouterr().err
    assert "refuses this backward()" in under_heal and "heal() runs it" not in under_heal
    say(Session("clean", [refused()]))
    assert "heal() runs it" in capsys.readouterr().err


def test_a_healed_session_is_told_again_as_healed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "session.json"
    write(healed(), str(out), None)
    assert json.loads(out.read_text())["outcome"] == "healed"
    assert main(["report", str(out)]) == 0
    told = capsys.readouterr().out
    assert "healed[GM10" in told and "error[" not in told


def test_the_same_in_each_call_of_an_audit_is_one() -> None:
    one, other = healed().conflicts[0], refused()
    kept = once([one, other, one, one])
    assert [(c.rule, c.times) for c in kept] == [(one.rule, 3 * one.times), (other.rule, other.times)]


def test_a_line_that_only_may_have_written_is_told_so() -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(gradmend.ConflictError) as caught, gradmend.watch():
        y = x.exp()
        a = y.detach().numpy()
        a[0] = 5
        y.sum().backward()
    labels = [span.label for span in tell(caught.value.conflict).spans]
    assert "this line may have changed the array, past PyTorch" in labels
