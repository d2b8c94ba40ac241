"""Pages that are made from runs: there is one for each cause, with the rule's own program in it. Their words may age;
`make pages` writes them again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradmend.rules import all_rules
from gradmend.story.knowledge import saves

DOCS = Path(__file__).parents[2] / "docs"
CAUSES = [rule for rule in all_rules() if not rule.code.startswith("GM3")]


@pytest.mark.parametrize("rule", CAUSES, ids=lambda rule: rule.code)
def test_a_how_to_for_each_cause(rule: object) -> None:
    page = (DOCS / "how-to" / f"{rule.code}.md").read_text()  # type: ignore[attr-defined]
    assert rule.bad.strip() in page  # type: ignore[attr-defined]
    assert "## What Gradmend says" in page and "## The fix" in page
    assert "Traceback" not in page and "/tmp/" not in page


def test_the_table_of_ops_is_what_the_knowledge_says() -> None:
    table = (DOCS / "what-ops-keep.md").read_text()
    for op in ("exp", "mul", "add", "sigmoid", "pow"):
        row = next(line for line in table.splitlines() if line.startswith(f"| `{op}` |"))
        assert set(re.findall(r"`(\w+)`", row)) - {op} == set(saves(op).keeps)


def test_claims_are_all_there() -> None:
    page = (DOCS / "claims.md").read_text()
    assert len(re.findall(r"^## \d+\. ", page, re.M)) == 21
    assert page.count("PyTorch:  ") == 21 and "/tmp" not in page


def test_the_picture_is_a_story_and_loads_nothing() -> None:
    svg = (DOCS / "images" / "story.svg").read_text()
    assert "GM101" in svg and "url(http" not in svg and "<script" not in svg and "@import" not in svg
    report = (DOCS / "report.html").read_text()
    assert "Fix proven" in report and "/tmp/" not in report and "site-packages" not in report
