"""docs/sparse-operations.md is what tools/sparse_table.py finds when it runs the 106 operations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "sparse_table.py"


@pytest.mark.skipif(not TOOL.exists(), reason="not in a source tree")
def test_the_committed_table_is_what_runs_find() -> None:
    done = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ours_has_neither_f_nor_b() -> None:
    rows = (ROOT / "docs" / "sparse-operations.md").read_text().splitlines()
    table = [row.strip("| ").split(" | ") for row in rows if row.startswith("| `")]
    assert len(table) == 106
    assert {cells[-1] for cells in table} == {"ok", "dense"}
