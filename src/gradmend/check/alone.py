"""Whether a name is the only way to its tensor where a line writes to it: then a clone before that line changes nothing else.

Told from the text alone, and strictly: the name is bound on its own line of the same block, nothing mentions it between
that line and the write, an op of torch makes its tensor there, and no function, lambda or class of the
file that could see the name mentions it at all.
"""

from __future__ import annotations

import ast

from gradmend.check.table import op

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def is_alone(text: str, name: str, line: int) -> bool:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    scope: ast.AST = tree
    block: list[ast.stmt] | None = None
    stack: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while stack:
        node, home = stack.pop()
        if isinstance(node, _SCOPES):
            home = node
        for _, value in ast.iter_fields(node):
            items = value if isinstance(value, list) else [value]
            if items and isinstance(items[0], ast.stmt) and any(one.lineno == line for one in items):
                block, scope = items, home
            stack += [(item, home) for item in items if isinstance(item, ast.AST)]
    if block is None or isinstance(scope, (ast.Lambda, ast.ClassDef)):
        return False
    return _bound_here(block, name, line) and not _seen_elsewhere(tree, scope, name)


def _bound_here(block: list[ast.stmt], name: str, line: int) -> bool:
    before = [one for one in block if (one.end_lineno or one.lineno) < line]
    for one in reversed(before):
        if isinstance(one, ast.Assign) and len(one.targets) == 1:
            target = one.targets[0]
            if isinstance(target, ast.Name) and target.id == name and not _mentions(one.value, name):
                return _is_fresh(one.value)
        if _mentions(one, name):
            return False
    return False


def _is_fresh(value: ast.expr) -> bool:
    """Whether an op of torch makes it here. What another function returns may be remembered by it: a cache, a closure."""
    if isinstance(value, (ast.BinOp, ast.UnaryOp)):
        return True
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and op(value.func.attr) is not None
    )


def _seen_elsewhere(tree: ast.AST, scope: ast.AST, name: str) -> bool:
    """A scope inside of this one that uses the name; of a module's name, any scope at all."""
    for node in ast.walk(tree if isinstance(scope, ast.Module) else scope):
        if node is not scope and isinstance(node, _SCOPES) and _mentions(node, name):
            return True
        if isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names:
            return True
    return False


def _mentions(node: ast.AST, name: str) -> bool:
    return any(
        (isinstance(one, ast.Name) and one.id == name)
        or (isinstance(one, ast.Name) and one.id in ("locals", "vars", "globals", "eval", "exec"))
        for one in ast.walk(node)
    )
