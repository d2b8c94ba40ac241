"""Statements after which nothing of their block runs."""

from __future__ import annotations

import ast

_ENDS = frozenset({"sys.exit", "os._exit", "os.abort", "exit", "quit"})


def ends_program(statement: ast.stmt) -> bool:
    """`sys.exit(1)`, `assert False`."""
    if isinstance(statement, ast.Assert):
        return isinstance(statement.test, ast.Constant) and not statement.test.value
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and ast.unparse(statement.value.func) in _ENDS
    )


def is_abstract(body: list[ast.stmt]) -> bool:
    """`raise NotImplementedError`: what runs in its place is a subclass's."""
    return isinstance(body[-1], ast.Raise) and "NotImplemented" in ast.unparse(body[-1])


def leaves(body: list[ast.stmt]) -> bool:
    last = body[-1]
    return isinstance(last, (ast.Return, ast.Raise, ast.Break, ast.Continue)) or ends_program(last)
