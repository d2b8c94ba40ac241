"""`gradmend report`: a saved session told again is the story told the first time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gradmend
from gradmend.api.watching import words_of
from gradmend.model import Session
from gradmend.report.ranks import agree, merged
from gradmend.report.saved import from_json


def session() -> Session:
    x = torch.ones(3, requires_grad=True)
    with gradmend.heal() as found:
        y = x.exp()
        loss = y.sum()
        y.mul_(2)
        loss.backward()
    return found


def test_the_story_survives_the_file() -> None:
    before = session()
    after = from_json(json.loads(json.dumps(before.as_json())))
    assert json.dumps(after.as_json()) == json.dumps(before.as_json())
    assert words_of(after.conflicts[0]) == words_of(before.conflicts[0])


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gradmend", "report", *words], capture_output=True, text=True, check=False
    )


def test_command(tmp_path: Path) -> None:
    saved = tmp_path / "s.json"
    found = session()
    saved.write_text(json.dumps(found.as_json()))
    done = command(str(saved), "--html", str(tmp_path / "page.html"))
    assert done.returncode == 0
    assert f"healed[{found.conflicts[0].rule}]" in done.stdout
    assert "gradmend fix" not in done.stdout  # what runs here is our own command
    assert "gradmend: healed, 1 conflict" in done.stdout
    assert "<html" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is no JSON"),
        ("{}", "is no session"),
        ('{"schema": 1, "outcome": "clean", "conflicts": [{}]}', "damaged"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    done = command(str(path))
    assert done.returncode == 2
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


def test_missing_file() -> None:
    assert command("nowhere.json").returncode == 2


def test_ranks_agree_by_their_lines() -> None:
    one, other, clean = session(), session(), Session()
    assert [seen.ranks for seen in agree([("0", one), ("1", other)])] == [("0", "1")]
    story = merged([("0", one), ("1", clean)])
    assert story.outcome == "healed"
    assert story.conflicts[0].notes[0] == "rank 0 met this, rank 1 did not"
