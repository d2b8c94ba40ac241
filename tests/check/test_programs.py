"""What is told of whole programs, and that PyTorch agrees with the labels."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from check_programs import PROGRAMS
from field_programs import programs

from gradmend import rules
from gradmend.check.files import check_file

# Causes that show in the source alone; the others need a run, or are told by PyTorch's own message.
STATIC = """
GM101 GM102 GM103 GM104 GM105 GM106 GM107 GM108 GM120 GM121 GM122 GM123 GM124 GM125 GM126 GM127 GM128 GM129 GM130 GM131 GM132
GM133 GM134 GM135 GM201 GM202 GM203 GM204 GM205 GM206 GM207 GM208 GM209 GM210 GM211 GM212 GM301 GM302 GM303 GM306 GM307 GM308
GM309 GM310 GM311 GM312 GM313 GM314 GM315 GM316 GM317 GM319
""".split()


def lines_of(source: str) -> list[tuple[int, str]]:
    return [(f.place.line, f.rule) for f in check_file("/nowhere/main.py", source.encode()).findings]


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    want, _, source = PROGRAMS[name]
    got = lines_of(source)
    if want:
        assert {line for line, _ in got} & set(want), got
    else:
        assert got == []


FIELD = programs()


@pytest.mark.parametrize("name", FIELD)
def test_program_from_the_field(name: str) -> None:
    program = FIELD[name]
    got = lines_of(program.source)
    if program.told:
        assert {line for line, _ in got} & set(program.told), got
    else:
        assert got == []


@pytest.mark.parametrize("code", STATIC)
def test_a_rules_own_snippets(code: str) -> None:
    rule = rules.get(code)
    assert code in [c for _, c in lines_of(rule.bad.strip("\n"))]
    assert lines_of(rule.good.strip("\n")) == []


@pytest.mark.parametrize("code", [c for c in rules.codes() if c not in STATIC])
def test_good_snippets_of_other_rules_are_left_alone(code: str) -> None:
    assert lines_of(rules.get(code).good.strip("\n")) == []


def test_optimizers_and_models_that_were_handed_in_go_by_their_names() -> None:
    """The same function without its caller: what it is given is not known, so it is a warning."""
    source = PROGRAMS["gan_handed_in"][2].partition("G, D =")[0]
    found = check_file("/nowhere/main.py", source.encode()).findings
    assert [(f.place.line, f.rule, f.severity) for f in found] == [(11, "GM104", "warning")]


RUNNER = """
import json, sys, torch
torch.set_num_threads(1)
said = {}
for name, (_, _, source) in json.load(open(sys.argv[1])).items():
    torch.manual_seed(0)
    try:
        exec(compile(source, name, "exec"), {"__name__": "__main__"})
        said[name] = ""
    except (RuntimeError, TypeError) as error:
        said[name] = str(error)
print(json.dumps(said))
"""


@pytest.mark.slow
def test_pytorch_agrees_with_the_labels(tmp_path: Path) -> None:
    asked = {**PROGRAMS, **{p.name: (p.told, p.silent, p.source) for p in FIELD.values()}}
    (tmp_path / "programs.json").write_text(json.dumps(asked))
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(tmp_path / "programs.json")],
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout.splitlines()[-1])
    for name, (want, silent, _) in asked.items():
        assert bool(said[name]) == (bool(want) and not silent), (name, said[name])
