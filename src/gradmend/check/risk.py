"""Which parts of a file can hold a finding at all: most can't, and are not walked.

A conflict needs a write, a step, a backward, or memory shared beyond torch; all of these show in the syntax.
"""

from __future__ import annotations

import ast
from typing import Any

_ATTRIBUTES = frozenset(
    {
        "data",
        "step",
        "backward",
        "numpy",
        "from_numpy",
        "from_dlpack",
        "apply",
        "save_for_backward",
        "register_hook",
        "manual_backward",
        "inference_mode",
        "register_full_backward_hook",
        "sparse_coo_tensor",
        "sparse_csr_tensor",
        "to_sparse",
        "jvp",
    }
)
_KEYWORDS = frozenset({"inplace", "out", "max_norm", "sparse"})


class Risks:
    __slots__ = ("_classes", "_named", "any", "functions", "sizes", "statements")

    def __init__(self, tree: ast.Module) -> None:
        self.functions: set[int] = set()
        self.sizes: dict[int, int] = {}
        self._classes: dict[str, ast.ClassDef] = {}
        self._named: dict[str, set[str]] = {}  # each name, and the classes and top functions that use it
        self.statements = 0
        self.any = False
        self._walk(tree)

    def _walk(self, tree: ast.Module) -> None:
        """One pass, with a stack of the definitions that we are in."""
        todo: list[tuple[ast.AST, tuple[Any, ...], tuple[str, ...]]] = [(tree, (), ())]
        risky_names: set[str] = set()
        while todo:
            node, inside, names = todo.pop()
            if isinstance(node, ast.stmt):
                self.statements += 1
                for outer in inside:
                    self.sizes[id(outer)] = self.sizes.get(id(outer), 0) + 1
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                if isinstance(node, ast.ClassDef):
                    self._classes[node.name] = node
                if len(inside) < 6:
                    # By its name others reach a class, or a function that stands in none.
                    if not inside or isinstance(node, ast.ClassDef):
                        names = (*names, node.name)
                    inside = (*inside, node)
            elif isinstance(node, ast.Name):
                self._named.setdefault(node.id, set()).update(names)
            if risky(node):
                self.any = True
                self.functions.update(map(id, inside))
                risky_names.update(names)
            todo += [(child, inside, names) for child in ast.iter_child_nodes(node)]
        reached: set[str] = set()
        while risky_names:  # and those who call them, however far
            name = risky_names.pop()
            reached.add(name)
            risky_names |= self._named.get(name, set()) - reached
        self.functions.update(id(node) for name, node in self._classes.items() if name in reached)

    def of_class(self, node: ast.ClassDef) -> bool:
        return id(node) in self.functions


def risky(node: Any) -> bool:
    kind = type(node)
    if kind is ast.AugAssign:
        return True
    if kind is ast.Subscript:
        return isinstance(node.ctx, ast.Store)
    if kind is ast.Attribute:
        name: str = node.attr
        if name == "grad":  # torch.autograd.grad, not p.grad
            return getattr(node.value, "attr", getattr(node.value, "id", "")) == "autograd"
        return name in _ATTRIBUTES or (name.endswith("_") and not name.endswith("__"))
    if kind is ast.Call:
        return isinstance(node.func, ast.Name) and node.func.id == "grad"
    if kind is ast.keyword:
        return node.arg in _KEYWORDS and not (
            isinstance(node.value, ast.Constant) and node.value.value in (None, False)
        )
    return False
