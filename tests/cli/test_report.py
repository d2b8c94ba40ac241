"""`gradmend report`: a saved session told again is the story told the first time."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gradmend
import warm
from gradmend.api.watching import words_of
from gradmend.cli.main import main
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
    return warm.run([sys.executable, "-m", "gradmend", "report", *words])


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
    story = merged([("rank 0", one), ("rank 1", clean)])
    assert story.outcome == "healed"
    assert story.conflicts[0].notes[0] == "rank 0 met this, rank 1 did not"


def _places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if way:
        yield way
    for key, one in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from _places(one, (*way, key))


@pytest.mark.slow
def test_a_session_that_somebody_changed_is_told_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any value at any place: a report, or one line; never our traceback, and nothing that steers a terminal."""
    whole = json.loads(json.dumps(session().as_json()))
    file, refused = tmp_path / "changed.json", 0
    values = (None, -1, 10**30, 1.5, "\x1b[31mred", [[1]], {"a": 1})
    every = [(way, value) for way in _places(whole) for value in values]
    for way, value in random.Random(0).sample(every, 150):
        made = copy.deepcopy(whole)
        home = made
        for key in way[:-1]:
            home = home[key]
        home[way[-1]] = value
        file.write_text(json.dumps(made))
        code = main(["report", str(file), "--html", str(tmp_path / "page.html")])
        told = capsys.readouterr()
        assert code in (0, 2), (way, value)
        assert "\x1b" not in told.out + told.err, (way, value)
        if code == 2:
            refused += 1
            assert told.err.count("\n") == 1, (way, value, told.err)
    assert refused > 5


def test_sessions_of_different_runs_are_no_ranks() -> None:
    from gradmend.report.ranks import names_of, told

    assert names_of(["x/a.rank0.json", "x/a.rank1.json"]) == ["rank 0", "rank 1"]
    assert names_of(["x/a.json", "b.json"]) == ["a.json", "b.json"]
    assert names_of(["x/a.json", "y/a.json"]) == ["x/a.json", "y/a.json"]
    assert told(["a.json"], ["a.json", "b.json"]) == "a.json met this, b.json did not"
    assert told(["rank 0"], ["rank 0", "rank 1", "rank 2"]) == "rank 0 met this, ranks 1 and 2 did not"
