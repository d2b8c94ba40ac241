"""docs/rules is what tools/make_rule_docs.py makes of the rules as they are."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools/make_rule_docs.py"


@pytest.mark.skipif(not TOOL.exists(), reason="not in a source tree")
def test_docs_are_fresh() -> None:
    spec = importlib.util.spec_from_file_location("make_rule_docs", TOOL)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.stale() == [], "run tools/make_rule_docs.py"
    assert len(tool.pages()) > 20
