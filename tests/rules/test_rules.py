"""Each rule's own snippets, run by plain PyTorch: the bad one fails as the rule says, the good one is right."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys

import pytest

from gradmend import rules
from gradmend.rules import Rule

ALL = rules.all_rules()


# Runs in a process of its own, without anything of ours: {code: [bad, good]}, each an error or a verdict.
RUNNER = """
import json, sys, traceback
import torch

def verdict(snippet, gradient, right):
    names = {"__name__": "__main__"}
    try:
        exec(compile(snippet, "<snippet>", "exec"), names)
    except Exception:
        return "raised: " + traceback.format_exc()
    if not right:
        return "ran"
    with torch.no_grad():
        got, right = eval(gradient, names), eval(right, {**names, "torch": torch})
        right = torch.as_tensor(right, dtype=got.dtype)
        if got.shape == right.shape and torch.allclose(got, right, rtol=1e-4, atol=1e-6):
            return "right"
        return f"wrong: {got} instead of {right}"

print(json.dumps({
    code: [verdict(snippet, gradient, right) for snippet in (bad, good)]
    for code, bad, good, gradient, right in json.load(sys.stdin)
}))
"""


@pytest.fixture(scope="module")
def verdicts() -> dict[str, list[str]]:
    """What plain PyTorch says to every snippet: {code: [bad, good]}."""
    asked = [
        (r.code, r.bad, r.good, r.gradient, r.right)
        for r in ALL
        if all(importlib.util.find_spec(module) for module in r.needs)
    ]
    done = subprocess.run(
        [sys.executable, "-c", RUNNER], input=json.dumps(asked), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize("rule", ALL, ids=lambda r: r.code)
def test_bad_is_bad(rule: Rule, verdicts: dict[str, list[str]]) -> None:
    if rule.code not in verdicts:
        pytest.skip(f"needs {rule.needs}")
    bad = verdicts[rule.code][0]
    if rule.raises:
        assert bad.startswith("raised: ")
        assert re.search(rule.raises, bad)
    else:
        assert bad.startswith("wrong: ")


@pytest.mark.parametrize("rule", ALL, ids=lambda r: r.code)
def test_good_is_good(rule: Rule, verdicts: dict[str, list[str]]) -> None:
    if rule.code not in verdicts:
        pytest.skip(f"needs {rule.needs}")
    assert verdicts[rule.code][1] == ("right" if rule.right else "ran")


@pytest.mark.parametrize("rule", ALL, ids=lambda r: r.code)
def test_the_words_are_whole(rule: Rule) -> None:
    assert re.fullmatch(r"GM[123]\d\d", rule.code)
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
