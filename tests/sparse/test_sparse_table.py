"""docs/sparse-operations.md is what tools/sparse_table.py finds when it runs the 106 operations."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "sparse_table.py"


@pytest.mark.skipif(not TOOL.exists(), reason="not in a source tree")
def test_the_committed_table_is_what_runs_find(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.spec_from_file_location("sparse_table", TOOL)
    assert found is not None and found.loader is not None
    tool = importlib.util.module_from_spec(found)
    found.loader.exec_module(tool)
    monkeypatch.setattr(sys, "argv", [str(TOOL), "--check"])
    threads = torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            assert tool.main() == 0, capsys.readouterr().out
    finally:
        torch.set_num_threads(threads)


def test_ours_has_neither_f_nor_b() -> None:
    rows = (ROOT / "docs" / "sparse-operations.md").read_text().splitlines()
    table = [row.strip("| ").split(" | ") for row in rows if row.startswith("| `")]
    assert len(table) == 106
    assert {cells[-1] for cells in table} == {"ok", "dense"}
