"""Whether a name is the only way to its tensor where a line writes to it: then a clone before that line changes nothing else.

Told from the text alone, and strictly: the name is bound on its own line of the same block, nothing mentions it between
that line and the write, an op of torch surely makes its tensor there, and no function, lambda or class of the
file that could see the name mentions it at all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from gradmend.check.surely import ANY, Surely

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def is_alone(text: str, name: str, line: int, around: str | None = None) -> bool:
    """`around`: of a notebook's cell, all cells: what they bind, in whatever order they run."""
    found = _places(text).get(line)
    if found is None:
        return False
    block, hidden = found
    if name in hidden or hidden & ANY:
        return False
    made = _bound_here(block, name, line)
    return made is not None and _surely(text if around is None else around).fresh(made)


_Place = tuple[list[ast.stmt], frozenset[str]]


@lru_cache(maxsize=4)  # a file has many findings
def _tree(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


@lru_cache(maxsize=4)
def _surely(text: str) -> Surely:
    return Surely(_tree(text))


@lru_cache(maxsize=4)
def _places(text: str) -> dict[int, _Place]:
    """By the line where a statement starts: its block, and the names that scopes inside of its own use."""
    tree = _tree(text)
    blocks: dict[int, tuple[list[ast.stmt], ast.AST]] = {}
    stack: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while stack:
        node, home = stack.pop()
        if isinstance(node, _SCOPES):
            home = node
        for _, value in ast.iter_fields(node):
            items = value if isinstance(value, list) else [value]
            if items and isinstance(items[0], ast.stmt):
                blocks.update((one.lineno, (items, home)) for one in items)
            stack += [(item, home) for item in items if isinstance(item, ast.AST)]
    hidden: dict[ast.AST, frozenset[str]] = {}
    found: dict[int, _Place] = {}
    for line, (block, scope) in blocks.items():
        if isinstance(scope, (ast.Lambda, ast.ClassDef)):
            continue
        if scope not in hidden:
            hidden[scope] = frozenset(_names_inside(scope))
        found[line] = block, hidden[scope]
    return found


def _names_inside(scope: ast.AST) -> Iterator[str]:
    """Those that scopes inside of this one use, and those that are declared global or nonlocal.

    A global is an attribute of its module as well: `__main__.y`, `getattr(module, "y")`.
    """
    for node in ast.walk(scope):
        if node is not scope and isinstance(node, _SCOPES):
            yield from (one.id for one in ast.walk(node) if isinstance(one, ast.Name))
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            yield from node.names
        elif isinstance(scope, ast.Module) and isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(scope, ast.Module) and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _bound_here(block: list[ast.stmt], name: str, line: int) -> ast.expr | None:
    """What it is bound to, where that is plain."""
    before = [one for one in block if (one.end_lineno or one.lineno) < line]
    for one in reversed(before):
        if isinstance(one, ast.Assign) and len(one.targets) == 1:
            target = one.targets[0]
            if isinstance(target, ast.Name) and target.id == name and not _mentions(one.value, name):
                return one.value
        if _mentions(one, name):
            return None
    return None


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(one, ast.Name) and (one.id == name or one.id in ANY) for one in ast.walk(node))
