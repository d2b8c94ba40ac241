"""The walled device for tests, in child processes: a forbidden access ends the process that made it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import walled

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
Child = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def child() -> Child:
    """Runs Python with the device at hand, and says how it ended."""
    try:
        walled.library()
    except walled.NoCompilerError as reason:
        pytest.skip(str(reason))

    def run(*args: str, autoload: bool = False, **env: str) -> subprocess.CompletedProcess[str]:
        paths = [str(HERE), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        if autoload:
            paths.insert(0, str(HERE / "autoload"))
        around = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **env}
        command = [sys.executable, "-X", "faulthandler", *args]
        return subprocess.run(command, cwd=ROOT, env=around, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def tests_there(child: Child) -> Callable[..., int]:
    """Runs tests of this suite on the device; how many passed."""

    def run(*args: str, **env: str) -> int:
        done = child(
            "-m", "pytest", "-p", "on_walled", "-p", "no:cacheprovider", "-n", "0", "--tb=short", *args, **env
        )
        assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
        found = re.search(r"(\d+) passed", done.stdout)
        return int(found[1]) if found else 0

    return run
