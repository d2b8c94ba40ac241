"""Each rule's own snippets, run by plain PyTorch: the bad one fails as the rule says, the good one is right."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import textwrap

import pytest

from gradmend import rules
from gradmend.rules import Rule

ALL = rules.all_rules()


def run(rule: Rule, snippet: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as a user would; the last line says whether the gradient is right."""
    for module in rule.needs:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}")
    verdict = (
        f"""
import torch
with torch.no_grad():
    got, right = ({rule.gradient}), ({rule.right})
    right = torch.as_tensor(right, dtype=got.dtype)
    print("gradient:", "right" if torch.allclose(got, right, rtol=1e-4, atol=1e-6) else f"wrong {{got}} {{right}}")
"""
        if rule.right
        else ""
    )
    program = textwrap.dedent(snippet) + verdict
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("rule", ALL, ids=lambda r: r.code)
def test_bad_is_bad(rule: Rule) -> None:
    done = run(rule, rule.bad)
    if rule.raises:
        assert done.returncode != 0, f"it ran:\n{done.stdout}"
        assert re.search(rule.raises, done.stderr.splitlines()[-1] + done.stderr), done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert "gradient: wrong" in done.stdout


@pytest.mark.parametrize("rule", ALL, ids=lambda r: r.code)
def test_good_is_good(rule: Rule) -> None:
    done = run(rule, rule.good)
    assert done.returncode == 0, done.stderr
    if rule.right:
        assert "gradient: right" in done.stdout, done.stdout


@pytest.mark.parametrize("rule", ALL, ids=lambda r: r.code)
def test_the_words_are_whole(rule: Rule) -> None:
    assert re.fullmatch(r"GM[12]\d\d", rule.code)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)
    assert rule.summary.endswith(".") and "\n" not in rule.summary
    for text in (rule.what, rule.why, rule.fix):
        assert text.strip().endswith((".", ":", "`")), text
    assert rule.raises or rule.right, "a rule proves itself by an error or by a gradient"
    assert rule.silent is not bool(rule.raises)


def test_codes_and_names_are_unique() -> None:
    assert [r.code for r in ALL] == list(rules.codes())
    assert len({r.name for r in ALL}) == len(ALL)


def test_get_takes_any_case_and_names_the_rules_when_there_is_none() -> None:
    assert rules.get("gm101").code == "GM101"
    with pytest.raises(KeyError, match=r"no rule GM999; the rules are GM101"):
        rules.get("GM999")


def test_importing_the_registry_imports_no_rule() -> None:
    code = "import sys, gradmend.rules as r; r.codes(); sys.exit(any('.gm' in m for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("rule", ALL, ids=lambda r: r.code)
def test_text_has_the_five_headings_and_fits(rule: Rule) -> None:
    text = rule.as_text()
    for heading in ("What it does", "Why is this bad", "Example", "Use instead", "Fix safety"):
        assert f"\n{heading}\n" in text
    assert text.startswith(rule.code)
    assert all(len(line) <= 100 for line in text.splitlines())
