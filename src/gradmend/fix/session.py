"""One call of `gradmend fix`, from the script's name to the exit code."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradmend.fix import show
from gradmend.fix.judging.cost import Cost, measure
from gradmend.fix.search.outcome import Plan
from gradmend.fix.search.plan import Planner
from gradmend.fix.source.apply import apply
from gradmend.fix.trials.runs import Runner
from gradmend.report.colour import coloured, painted_diff


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    report: dict[str, Any]


def fix(
    script: Path,
    argv: list[str],
    *,
    steps: int,
    seconds: float,
    write: bool,
    unsafe: bool,
    colour: bool,
    module: str | None = None,
    allow: frozenset[str] = frozenset(),
) -> Outcome:
    """`module`: run it as `python -m` would; `allow`: what trials may reach beside their copy (processes, network)."""
    cost: Cost | None = None
    with (
        _progress() as tell,
        Runner(script, argv, Path.cwd(), steps, seconds, module=module, allow=allow) as runner,
    ):
        planner = Planner(runner, tell, seconds)
        plan = planner.plan()
        if plan.status == "proven" and time.monotonic() < planner.attempts.until:
            tell("measuring the cost")
            encoded = {f: plan.original[f].encode(s) for f, s in plan.sources.items()}
            cost = measure(runner, encoded, plan.seconds, retain=plan.basis == "retained", series=plan.joined)
    patch = show.diff(plan.original, plan.sources)
    wanted = plan.status == "proven" or (unsafe and plan.status == "unproven" and bool(plan.sources))
    if patch and (wanted or plan.status == "unproven"):
        _print_diff(patch, colour)
    written = False
    if wanted and write:
        apply(plan.original, plan.sources)
        written = True
    code = _say(plan, cost, written, wanted)
    return Outcome(code, show.as_json(plan, cost, patch, written))


def _say(plan: Plan, cost: Cost | None, written: bool, wanted: bool) -> int:
    if plan.status == "clean":
        print(plan.message)
        return 0
    if plan.status == "proven":
        print(show.proof(plan, cost), end="")
        if written:
            print(f"written: {', '.join(sorted(plan.sources))}")
        return 0
    if plan.status == "stuck":
        print(f"gradmend: {plan.message}; nothing was changed", file=sys.stderr)
        return 1
    print(show.stuck(plan), end="")
    print("unproven: " + ("written because of --unsafe" if written else "nothing was changed"))
    return 1


def _print_diff(patch: str, colour: bool) -> None:
    sys.stdout.write(painted_diff(patch) if colour else patch)


@contextmanager
def _progress() -> Iterator[Any]:
    """A line on stderr that says what is tried, and since when."""
    began = time.monotonic()

    def timed(text: str) -> str:
        return f"{time.monotonic() - began:.0f} s: {text}"

    if not coloured(sys.stderr) or not sys.stderr.isatty():
        yield lambda text: print(f"gradmend: {timed(text)}", file=sys.stderr, flush=True)
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("starting") as status:
        yield lambda text: status.update(timed(text))
