"""The rules' snippets under Gradmend itself: bad ones are told by their own rule, good ones run, healing is right or stops."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import warm
from gradmend import rules
from gradmend.rules import Rule

# Rules that are told when PyTorch itself raises have tests of their own, with the failures.
OURS = [r for r in rules.all_rules() if (r.code < "GM120" or r.silent) and not r.static]

CODES = [r.code for r in OURS]

# One process for all: {code: {"watch": rule or "ran", "good": ..., "heal": ...}}.
RUNNER = """
import json, runpy, sys
import torch
import gradmend

def run(file, scope, gradient, right):
    try:
        with scope as session:
            names = runpy.run_path(file, run_name="__main__")
    except gradmend.ConflictError as error:
        return "told: " + error.conflict.rule
    except Exception as error:
        return f"raised: {type(error).__name__}: {error}"
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    with torch.no_grad():
        got = eval(gradient, names)
        want = torch.as_tensor(eval(right, {**names, "torch": torch}), dtype=got.dtype)
        same = torch.allclose(got, want, rtol=1e-4, atol=1e-6)
    told = [c.rule for c in session.conflicts if c.kind != "refused-but-right"]
    return ("right" if same else "wrong") + "".join(f", told: {code}" for code in told)

answer = {}
for code, bad, good, gradient, right in json.load(sys.stdin):
    answer[code] = {
        "watch": run(bad, gradmend.watch(), gradient, right),
        "good": run(good, gradmend.watch(), gradient, right),
        "heal": run(bad, gradmend.heal(), gradient, right),
    }
print(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("snippets")

    def file(rule: Rule, which: str) -> str:
        path: Path = folder / f"{rule.code}_{which}.py"
        path.write_text(getattr(rule, which))
        return str(path)

    asked = [
        (r.code, file(r, "bad"), file(r, "good"), r.gradient, r.right)
        for r in OURS
        if all(importlib.util.find_spec(module) for module in r.needs)
    ]
    done = warm.run([sys.executable, "-c", RUNNER], input=json.dumps(asked), timeout=300)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize("code", CODES)
def test_bad_is_told_by_its_own_rule(code: str, live: dict[str, Any]) -> None:
    # A false alarm of PyTorch's is none of ours: the program just runs.
    assert live[code]["watch"] == ("right" if code == "GM109" else f"told: {code}")


@pytest.mark.parametrize("code", CODES)
def test_good_runs_untold(code: str, live: dict[str, Any]) -> None:
    assert live[code]["good"] == "right"


@pytest.mark.parametrize("code", CODES)
def test_healing_is_right_or_stops(code: str, live: dict[str, Any]) -> None:
    healed = live[code]["heal"]
    assert healed.startswith(("right", "told: ")), healed
    if code in {f"GM10{i}" for i in range(1, 9)}:
        assert healed.startswith("right"), "an ordinary write can be healed"
