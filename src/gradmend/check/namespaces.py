"""What the names of one file stand for, by the text alone: its functions, its classes, what it imports."""

from __future__ import annotations

import ast
from typing import NamedTuple


class ClassNames(NamedTuple):
    methods: frozenset[str]
    bases: tuple[str, ...]


class Namespace:
    """`imports`: each name with (level, module, what of it)."""

    __slots__ = ("classes", "functions", "imports", "stars")

    def __init__(self, tree: ast.Module) -> None:
        self.functions: set[str] = set()  # outside of classes
        self.classes: dict[str, ClassNames] = {}
        self.imports: dict[str, tuple[int, str, str]] = {}
        self.stars = False
        todo: list[ast.stmt] = list(tree.body)
        while todo:
            node = todo.pop()
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.functions.add(node.name)
            elif isinstance(node, ast.ClassDef):
                held = [
                    part for part in node.body if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef))
                ]
                bases = [getattr(base, "attr", getattr(base, "id", "")) for base in node.bases]
                self.classes[node.name] = ClassNames(frozenset(part.name for part in held), tuple(bases))
                continue
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    self.imports[name] = (0, alias.name if alias.asname else name, "")
            elif isinstance(node, ast.ImportFrom):
                self.stars |= any(alias.name == "*" for alias in node.names)
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = (node.level, node.module or "", alias.name)
            todo += [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.stmt)]
            for handler in getattr(node, "handlers", ()):
                todo += handler.body
