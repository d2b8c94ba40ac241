"""The story of a second backward names the place that carried the old graph over, and the line that stored it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from second_programs import PROGRAMS as FIRST
from second_programs import Program
from second_programs_more import PROGRAMS as MORE

import warm


def story(program: Program, folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    for name, text in program.files.items():
        (folder / name).write_text(text)
    words = [sys.executable, "-m", "gradmend", "run", *options, "--report", "session.json", "main.py"]
    ran = warm.run(words, cwd=folder)
    (conflict,) = json.loads((folder / "session.json").read_text())["conflicts"]
    return conflict, ran.stderr


PROGRAMS = [*FIRST, *MORE]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_the_carrier_comes_first_then_the_backward_calls(program: Program, tmp_path: Path) -> None:
    conflict, _ = story(program, tmp_path)
    assert conflict["rule"] == "GM131"
    first, *calls = conflict["culprits"]
    assert (Path(first["file"]).name, first["line"]) in program.carriers()
    assert f"`{program.carrier}" in conflict["message"]
    assert calls and {c["op"] for c in calls} == {"backward"}
    for call in calls:
        line = Path(call["file"]).read_text().splitlines()[call["line"] - 1]
        assert "backward" in line


@pytest.mark.parametrize("name", ["state_on_attribute", "closure_cell", "zeroed_in_place"])
def test_heal_names_retain_where_it_stops(name: str, tmp_path: Path) -> None:
    program = next(p for p in PROGRAMS if p.name == name)
    conflict, said = story(program, tmp_path, "--heal")
    assert any("--retain" in line for line in conflict["help"])
    assert "--retain" in said
