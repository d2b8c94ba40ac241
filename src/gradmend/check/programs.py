"""Programs that only call: a main.py with no write and no backward of its own, whose imports have them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from gradmend.check.project import Module, Project

_MOST = 12  # files that are looked into


def drives(module: Module, project: Project, worth: Callable[[bytes], bool]) -> bool:
    """Does it call something when it runs, and do the project's files that it imports hold what can go wrong?"""
    if not any(map(_runs, module.tree.body)):
        return False
    seen: list[Module] = []
    todo = list(_imported(module, project))
    while todo and len(seen) < _MOST:
        other = todo.pop(0)
        if other in seen:
            continue
        seen.append(other)
        project.asked.add(other.file)
        try:
            with open(other.file, "rb") as handle:
                source = handle.read()
        except OSError:
            continue
        if worth(source):
            return True
        todo += _imported(other, project)
    return False


def _runs(statement: ast.stmt) -> bool:
    """A call for its own sake at the top, or below a test or a loop there: `train(Net())`, not `logger = get_logger()`."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, (ast.Call, ast.Await))
    if isinstance(statement, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
        return any(map(_runs, statement.body))
    return False


def _imported(module: Module, project: Project) -> Iterator[Module]:
    for statement in module.tree.body:
        found: list[Module | None] = []
        if isinstance(statement, ast.Import):
            found = [project.find(module, alias.name, 0) for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            name, level = statement.module or "", statement.level
            found = [project.find(module, name, level)]
            # `from package import module`
            found += [
                project.find(module, f"{name}.{alias.name}" if name else alias.name, level)
                for alias in statement.names
                if found[0] is None or found[0].file.endswith("__init__.py")
            ]
        yield from (other for other in found if other is not None and other is not module)
