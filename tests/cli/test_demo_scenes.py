"""The demo: its scenes in order, each with something to see, and a report at its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def demo(*words: str) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "gradmend", "demo", *words]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=env, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "no noise"
    return done.stdout


@pytest.mark.slow
def test_all_scenes_in_order(tmp_path: Path) -> None:
    told = demo("--html", str(tmp_path / "out.html"))
    words = [
        "python residual_block.py", "modified by an inplace operation", "gradmend run residual_block.py", "error[GM101]",
        "python index_buffer.py", "gradient by row", "gradmend run index_buffer.py", "error[GM202]",
        "gradmend run --heal residual_block.py", "first gradient", "gradmend fix residual_block.py", "proven: ",
        "python sparse_training.py", "torch.sparse", "gradmend.sparse", "largest difference",
    ]  # fmt: skip
    at = 0
    for word in words:
        at = told.index(word, at)
    assert told.rstrip().splitlines()[-1].endswith(str(tmp_path / "out.html"))
    assert "Fix proven" in (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "\x1b" not in told


@pytest.mark.parametrize("name", ["heal"])
def test_one_scene(name: str) -> None:
    told = demo(name)
    assert "1/1" in told and "A report to open" not in told
