"""Arms of branches, put together."""

from __future__ import annotations

from typing import Any

from gradmend.check.values import Const, Path, Value

# What an arm stored: where, under which key, what, and whether the arm's own test told it.
Change = tuple[dict, Any, Any, bool]


def merged(a: Path, b: Path) -> Path:
    if not a:
        return b
    if not b or a is b:
        return a
    have = {c for c, _ in a}
    return (*a, *(pair for pair in b if pair[0] not in have))


def same(a: Value, b: Value) -> bool:
    if a is b:
        return True
    return (
        isinstance(a, Const)
        and isinstance(b, Const)
        and type(a.value) is type(b.value)
        and a.value == b.value
    )
