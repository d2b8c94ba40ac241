"""What a written thing is called in the source."""

from __future__ import annotations

import ast
from typing import Any


def plain_target(statement: ast.stmt) -> str | None:
    """The local name that a statement writes to: `y += 1`, `y[i] = 0`, `y.relu_()`."""
    if isinstance(statement, ast.AugAssign):
        target: ast.expr = statement.target
    elif (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Subscript)
    ):
        target = statement.targets[0]
    elif (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Attribute)
    ):
        if not statement.value.func.attr.endswith("_"):
            return None
        target = statement.value.func.value
    else:
        return None
    while isinstance(target, ast.Subscript):
        target = target.value
    return target.id if isinstance(target, ast.Name) else None


def target_name(site: ast.AST) -> str:
    """What the written thing is called: `out`, `self.h`, `x[...]`."""
    node: Any = site
    if isinstance(node, ast.AugAssign):
        node = node.target
    elif isinstance(node, ast.Assign):
        node = node.targets[0]
    elif isinstance(node, ast.Call):
        keyword = next((k.value for k in node.keywords if k.arg == "out"), None)
        if keyword is not None:
            node = keyword
        elif isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
            node = node.func.value
            if isinstance(node, ast.Name) and node.id in ("F", "torch", "functional", "init") and site.args:  # type: ignore[attr-defined]
                node = site.args[0]  # type: ignore[attr-defined]
        elif node.args:
            node = node.args[0]
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
        return ".".join(reversed(parts))
    return ""
