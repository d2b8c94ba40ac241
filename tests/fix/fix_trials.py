"""What the tests of fix share."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradmend.fix.proof.runs import Runner

Make = Callable[..., Runner]


def printed(script: Path) -> Any:
    """The last JSON line that a script prints under plain PyTorch; None if it fails."""
    run = subprocess.run([sys.executable, script.name], cwd=script.parent, capture_output=True, text=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if run.returncode == 0 and lines else None


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [n for key in sorted(value) for n in numbers(value[key])]
    if isinstance(value, list):
        return [n for item in value for n in numbers(item)]
    return [float(value)]
