"""What can't run is told at once: before torch is loaded, which takes seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROWS = [
    (["run"], "no program given"),
    (["run", "nope.py"], "can't read nope.py"),
    (["run", "--budget", "1MB", "train.py"], "--budget goes with --heal"),
    (["run", "--retain", "train.py"], "--retain goes with --heal"),
    (["run", "--audit", "--heal", "train.py"], "--audit goes without --heal"),
    (["run", "--report", "no/where.json", "train.py"], "there is no folder"),
    (["fix", "nope.py"], "can't read nope.py"),
]


@pytest.mark.parametrize(("words", "told"), ROWS, ids=[" ".join(r[0]) for r in ROWS])
def test_bad_words_load_no_torch(tmp_path: Path, words: list[str], told: str) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    code = f"import sys; from gradmend.cli.main import main; code = main({words!r}); assert 'torch' not in sys.modules; sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and told in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1
