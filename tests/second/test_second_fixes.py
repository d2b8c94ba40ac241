"""What fix leaves of a second backward prints what one of its right edits prints, and changes nothing plain PyTorch computed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from second_programs import PROGRAMS, Program
from second_programs_more import PROGRAMS as MORE

from gradmend.fix.judging.compare import as_before
from gradmend.fix.search.plan import Planner
from gradmend.fix.trials.client import Host
from gradmend.fix.trials.runs import Runner

QUICK = {
    "state_on_attribute",
    "zeroed_in_place",
    "closure_cell",
    "cached_property",
    "made_once_before_the_loop",
    "two_losses_of_one_forward",
    "gan",
    "running_total",
    "memory_that_grows",
}
# Shown, not written: an update lies between two losses of one forward; a generator's state has no name outside of it.
OPEN = {"trunk_stepped_between", "generator_state"}


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    host = Host(["torch._dynamo"])
    yield host
    host.close()


def _printed(text: str) -> list[float]:
    return list(json.loads(text.strip().splitlines()[-1]))


def _params() -> list[object]:
    every = [p for p in (*PROGRAMS, *MORE) if p.name not in OPEN]
    return [pytest.param(p, id=p.name, marks=[] if p.name in QUICK else [pytest.mark.slow]) for p in every]


def _runner(host: Host, folder: Path, files: dict[str, str]) -> Runner:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return Runner(folder / "main.py", [], folder, 20, 120, host)


@pytest.mark.parametrize("program", _params())
def test_the_written_fix_is_the_right_one(program: Program, host: Host, tmp_path: Path) -> None:
    with _runner(host, tmp_path / "own", program.files) as runner:
        planner = Planner(runner, lambda text: None, 240)
        plan = planner.plan()
        assert plan.status == "proven", plan.message
        sources = {f: plan.original[f].encode(s) for f, s in plan.sources.items()}
        before, after = runner.run({}, "plain"), runner.run(sources, "plain")
    assert after.outcome == "finished"
    if not plan.joined:
        assert as_before(before, after)
    right = []
    for number, edits in enumerate(program.right):
        with _runner(host, tmp_path / f"right{number}", program.fixed(edits)) as runner:
            right.append(_printed(runner.run({}, "plain").stdout))
    assert any(_printed(after.stdout) == pytest.approx(one, rel=1e-4, abs=1e-6) for one in right)


def test_an_edit_that_cuts_inside_one_backward_is_refused(host: Host, tmp_path: Path) -> None:
    """`self.cell(x, self.h.detach())` runs, and halves a gradient that plain PyTorch computes."""
    program = next(p for p in PROGRAMS if p.name == "state_on_attribute")
    inside = program.fixed((("self.cell(x, self.h)", "self.cell(x, self.h.detach())"),))
    with _runner(host, tmp_path / "own", program.files) as runner:
        sources = {str(tmp_path / "own" / "main.py"): inside["main.py"].encode()}
        before, after = runner.run({}, "plain"), runner.run(sources, "plain")
        assert after.ran
        assert not as_before(before, after)
        plan = Planner(runner, lambda text: None, 240).plan()
    offered = [*plan.sources.values(), *(s for o in plan.options for s in o.sources.values())]
    assert offered
    assert not any("self.h.detach())" in text for text in offered)
