"""A program that plain PyTorch refuses never passes without a report: an exception, or a warning that names the line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import gradmend
from gradmend.rules import all_rules
from gradmend.rules._rule import Rule

REFUSED = [rule for rule in all_rules() if rule.raises]


def _run(source: str) -> BaseException | None:
    try:
        exec(compile(source, "<program>", "exec"), {"__name__": "__main__"})
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("rule", REFUSED, ids=lambda rule: rule.code)
@pytest.mark.parametrize("context", [gradmend.watch, gradmend.heal])
def test_every_bad_program(rule: Rule, context: Callable[[], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if _run(rule.bad) is None:
            pytest.skip("this torch lets it pass")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with context() as session:
            error = _run(rule.bad)
    reported = [w for w in told if issubclass(w.category, gradmend.GradmendWarning)]
    assert error is not None or reported or session.conflicts, rule.code
