"""What Python refuses although its parser takes it: `return` outside a function, `break` outside a loop."""

from __future__ import annotations

import ast

_OWN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def misplaced(tree: ast.Module) -> SyntaxError | None:
    """The first of these at the top of a file, or in a class there."""
    found: list[tuple[int, int, str]] = []
    todo: list[tuple[ast.AST, bool]] = [(node, False) for node in tree.body]
    while todo:
        node, looped = todo.pop()
        if isinstance(node, _OWN):
            continue
        said = _said(node, looped)
        if said:
            found.append((node.lineno, node.col_offset, said))  # type: ignore[attr-defined]
        if isinstance(node, _LOOPS):
            todo += [(child, True) for child in node.body]
            todo += [(child, looped) for child in node.orelse]
        else:
            inside = looped and not isinstance(node, ast.ClassDef)
            todo += [(child, inside) for child in ast.iter_child_nodes(node)]
    if not found:
        return None
    line, column, said = min(found)
    return SyntaxError(said, ("", line, column + 1, ""))


def _said(node: ast.AST, looped: bool) -> str:
    if isinstance(node, ast.Return):
        return "'return' outside function"
    if isinstance(node, (ast.Yield, ast.YieldFrom)):
        return "'yield' outside function"
    if isinstance(node, (ast.Break, ast.Continue)) and not looped:
        return f"'{type(node).__name__.lower()}' outside loop"
    return ""
