"""What the makers of pages share: where things lie, and how a program is run for a page."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import subprocess
import sys
import traceback
from pathlib import Path

from gradmend.running import launch
from gradmend.running.runner import Options, run_program

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """One command in a folder, without colours, as wide as a page."""
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "96", "OMP_NUM_THREADS": "1", "GRADMEND": "0"}
    env["PYTHONWARNINGS"] = "ignore"
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=600
    )


def gradmend(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run(["-m", "gradmend", *words], folder)


def story_in(text: str) -> str:
    """The last story of what `gradmend run` wrote to stderr."""
    starts = [text.find(f"\n{level}[GM") for level in ("error", "warning")]
    at = max(starts)
    return text[at:].strip() if at >= 0 else ""


def plainly(script: str) -> tuple[str, str]:
    """What it printed, and PyTorch's own last words where it failed. In this process: torch is loaded once for all pages."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(script, run_name="__main__")
    except Exception as error:
        return out.getvalue().strip(), traceback.format_exception_only(error)[-1].strip()
    return out.getvalue().strip(), ""


def watched(script: str) -> str:
    """The story that `gradmend run` tells of it; empty where there is none."""
    heard = io.StringIO()
    with contextlib.redirect_stderr(heard), contextlib.redirect_stdout(io.StringIO()):
        run_program(Options(script), launch.script(script, ()))
    return story_in(heard.getvalue())
