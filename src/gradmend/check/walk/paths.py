"""Arms of branches, put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradmend.check.values import Const, Path, Value

# What an arm stored: where, under which key, what, and whether the arm's own test told it.
Change = tuple[dict, Any, Any, bool]
Either = Callable[[list[tuple[Path, Value]], list[Path]], Value]


def merged(a: Path, b: Path) -> Path:
    if not a:
        return b
    if not b or a is b:
        return a
    have = {c for c, _ in a}
    return (*a, *(pair for pair in b if pair[0] not in have))


def joined(options: list[tuple[Path, list[Value]]], either: Either) -> list[Value]:
    """The items of a list after a branch, place by place: what one arm appended is there on that arm."""
    items: list[Value] = []
    for i in range(max(len(held) for _, held in options)):
        there = [(path, held[i]) for path, held in options if i < len(held)]
        items.append(either(there, [path for path, held in options if i >= len(held)]))
    return items


def same(a: Value, b: Value) -> bool:
    if a is b:
        return True
    return (
        isinstance(a, Const)
        and isinstance(b, Const)
        and type(a.value) is type(b.value)
        and a.value == b.value
    )
