"""While one of torch's own optimizers steps and nobody would listen, its methods are torch's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "check",
    [
        "many_writes(12, 'watch')",
        "many_writes(12, 'install')",
        "many_writes(2, 'watch')",
        "many_writes(2, 'install')",
        "live_save()",
        "beside_another_thread()",
        "step_that_raised()",
    ],
)
def test_step(check: str) -> None:
    program = f"import stepping_checks; stepping_checks.{check}; print('held')"
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "held\n", run.stderr
