"""What the makers of pages share: where things lie, and how a program is run for a page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines() or done.stdout.strip().splitlines()
    return lines[-1] if lines else ""
