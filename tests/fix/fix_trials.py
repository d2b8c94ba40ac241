"""What the tests of fix share."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from gradmend.fix.trials.runs import Runner

Make = Callable[..., Runner]


def printed(runner: Runner) -> list[float]:
    """The numbers in the last JSON line that a program prints under plain PyTorch; none if it fails."""
    run = runner.run({}, "plain")
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    return numbers(json.loads(lines[-1])) if run.outcome == "finished" and lines else []


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [n for key in sorted(value) for n in numbers(value[key])]
    if isinstance(value, list):
        return [n for item in value for n in numbers(item)]
    return [float(value)]
