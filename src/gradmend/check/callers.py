"""In which grad mode a function is called, by the text alone: every place that names it, and what stands around that place.

A function that is tried on its own runs in grad mode by assumption. Where all that names it stands under no_grad, in these
files, the assumption is wrong.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from gradmend.check.project import parse

_ROUNDS = 4  # callers of callers that are looked for
_OFF = frozenset({"no_grad", "inference_mode"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(slots=True)
class Callers:
    """By a function's bare name: who names it. None: under no_grad; "": in grad mode; else the function that does."""

    of: dict[str, set[str | None]] = field(default_factory=dict)

    def add(self, tree: ast.Module) -> Callers:
        todo: list[tuple[ast.AST, str | None]] = [(tree, "")]
        while todo:
            node, by = todo.pop()
            if isinstance(node, _FUNCTIONS):
                modes = [m for d in node.decorator_list if (m := _mode(d)) is not None]
                inside = node.name if not modes else "" if modes[0] else None
                todo += [(child, by) for child in (*node.decorator_list, node.args)]
                todo += [(child, inside) for child in node.body]
                continue
            if isinstance(node, (ast.With, ast.AsyncWith)):
                inner = by
                for item in node.items:
                    todo.append((item, inner))
                    mode = _mode(item.context_expr)
                    inner = inner if mode is None else "" if mode else None
                todo += [(child, inner) for child in node.body]
                continue
            name = (
                node.id
                if isinstance(node, ast.Name)
                else node.attr
                if isinstance(node, ast.Attribute)
                else ""
            )
            if name and isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
                self.of.setdefault(name, set()).add(by)
            todo += [(child, by) for child in ast.iter_child_nodes(node)]
        return self

    def never_in_grad_mode(self, name: str) -> bool:
        """Somebody names it, and all who do are under no_grad, themselves or by their own callers."""
        seen: set[str] = set()
        todo = [name]
        while todo:
            one = todo.pop()
            if one in seen:
                continue
            seen.add(one)
            by = self.of.get(one, {""}) - {one}
            if "" in by or not by:
                return False
            todo += [other for other in by if other is not None]
        return True


def callers_in(files: list[str], names: set[str]) -> Callers:
    """Who names these functions in these files, who names those, and so on: only files that do are parsed."""
    found = Callers()
    read: set[str] = set()
    asked: set[str] = set()
    for _ in range(_ROUNDS):
        names -= asked
        if not names:
            return found
        asked |= names
        wanted = re.compile(rb"\b(?:" + b"|".join(re.escape(n.encode()) for n in sorted(names)) + rb")\b")
        for file in files:
            if file not in read and (tree := _tree(file, wanted)) is not None:
                read.add(file)
                found.add(tree)
        names = {by for name in asked for by in found.of.get(name, ()) if by}
    for name in names - asked:
        found.of.setdefault(name, set()).add("")  # too far away to be looked for
    return found


def _tree(file: str, wanted: re.Pattern[bytes]) -> ast.Module | None:
    try:
        with open(file, "rb") as handle:
            source = handle.read()
        return parse(source, file) if file.endswith((".py", ".pyw")) and wanted.search(source) else None
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _mode(expression: ast.expr) -> bool | None:
    """The grad mode that a decorator or a context sets; None for another."""
    call = expression if isinstance(expression, ast.Call) else None
    function = call.func if call is not None else expression
    name = getattr(function, "attr", getattr(function, "id", ""))
    given = call.args[0] if call is not None and call.args else None
    if name == "enable_grad":
        return True
    if name in _OFF:
        return isinstance(given, ast.Constant) and given.value is False
    if name == "set_grad_enabled" and isinstance(given, ast.Constant):
        return bool(given.value)
    return None
