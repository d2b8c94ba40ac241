"""The causes of broken gradients, one per file: gm101_kept_output.py holds `RULE`, all there is to know of GM101.

Importing this package imports no rule; a rule is loaded when it is asked for.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from gradmend.rules._rule import Rule

__all__ = ["Rule", "all_rules", "codes", "get"]


@cache
def _modules() -> dict[str, str]:
    """Code -> module name, from the file names alone."""
    found = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name.startswith("gm"))
    return {name.partition("_")[0].upper(): name for name in found}


def codes() -> tuple[str, ...]:
    return tuple(_modules())


@cache
def _load(code: str) -> Rule:
    rule: Rule = import_module(f"{__name__}.{_modules()[code]}").RULE
    return rule


def get(code: str) -> Rule:
    """The rule of this code, in any case: get("GM101"). KeyError where there is none."""
    code = code.strip().upper()
    if code not in _modules():
        raise KeyError(f"there is no rule {code}; the rules are {', '.join(codes())}")
    return _load(code)


def all_rules() -> tuple[Rule, ...]:
    return tuple(_load(code) for code in codes())
