from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fix_trials import Make

from gradmend.fix.search.outcome import Plan
from gradmend.fix.search.plan import Planner
from gradmend.fix.trials.client import Host
from gradmend.fix.trials.runs import Runner


@pytest.fixture(scope="session")
def host() -> Iterator[Host]:
    """One process that forks every trial run of these tests."""
    host = Host(["torch._dynamo"])
    yield host
    host.close()


@pytest.fixture
def runner(host: Host, tmp_path: Path) -> Iterator[Make]:
    """runner(source, steps=..., seconds=...): trial runs of a script."""
    made: list[Runner] = []

    def make(source: str, steps: int = 20, seconds: float = 120) -> Runner:
        home = tmp_path / f"other{len(made)}" if made else tmp_path
        home.mkdir(exist_ok=True)
        (home / "main.py").write_text(source)
        made.append(Runner(home / "main.py", [], home, steps, seconds, host))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def plan(runner: Make) -> Callable[[str], Plan]:
    return lambda source: Planner(runner(source), lambda text: None, 240).plan()
