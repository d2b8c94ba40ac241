"""The sparse examples train and draw: a few steps of each, in small."""

from __future__ import annotations

import importlib
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2] / "examples"
SMALL = {
    "sparse_graph_communities": ["--steps", "15", "--nodes", "400"],
    "sparse_rigl_digits": ["--steps", "40"],
    "sparse_two_tower": ["--steps", "25", "--users", "20000", "--items", "400", "--batch", "256"],
    "sparse_bag_of_words": ["--steps", "25", "--words", "5000", "--workers", "1"],
    "sparse_point_cloud": ["--steps", "12", "--side", "24", "--batch", "6"],
}


@pytest.mark.parametrize("name", SMALL)
def test_an_example_learns_and_draws(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HOME))
    losses = importlib.import_module(name).main([*SMALL[name], "--out", str(tmp_path / "curve.svg")])
    monkeypatch.delitem(sys.modules, name)
    first, last = sum(losses[:4]) / 4, sum(losses[-4:]) / 4
    assert last < first
    assert ET.parse(tmp_path / "curve.svg").getroot().tag.endswith("svg")


def test_every_sparse_example_is_run_here() -> None:
    assert {p.stem for p in HOME.glob("sparse_*.py")} == {*SMALL, "sparse_curve"}
