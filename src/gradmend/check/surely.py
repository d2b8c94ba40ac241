"""Which expressions of a file give a tensor of torch's own, whatever its functions are called with.

Told from the text alone, and strictly: a name is sure where every line of the file that binds it gives it such a tensor.
A parameter is never sure: `def act(xp, a): return xp.exp(a)` may be called with numpy as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradmend.check import table

ANY = frozenset({"locals", "vars", "globals", "eval", "exec"})  # whoever calls these may reach any name
# Those that may hand on what they were given.
_SAME = table.CONVERSIONS | table.MANY | table.SLICES | {"dropout", "alpha_dropout", "feature_dropout"}
_PLACES = ("torch", "torch.nn.functional", "torch.special", "torch.linalg", "torch.fft")
_NAMED = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.ExceptHandler,
    ast.MatchAs,
    ast.MatchStar,
)
_UNSURE = ast.Constant(None)  # stands for any value


class Surely:
    """What is sure in one file."""

    def __init__(self, tree: ast.AST) -> None:
        self._torch: dict[str, str] = {}  # name -> the dotted name behind it
        self._bound: dict[str, list[ast.expr]] = {}
        self._asked: dict[str, bool] = {}
        self._nothing = False
        for node in ast.walk(tree):
            self._note(node)
        for name in set(self._torch) & set(self._bound):
            del self._torch[name]

    def fresh(self, value: ast.expr) -> bool:
        """Whether an op of torch makes it here. What another function returns may be remembered by it: a cache, a closure."""
        try:
            if isinstance(value, ast.UnaryOp):
                return isinstance(value.op, ast.USub) and self._tensor(value)
            if isinstance(value, ast.BinOp):
                return self._tensor(value)
            return isinstance(value, ast.Call) and self._op(value) and _new(value) and not self._nothing
        except RecursionError:
            return False

    def _tensor(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Name):
            return self._name(value.id)
        if isinstance(value, ast.Subscript):
            return self._tensor(value.value)
        if isinstance(value, ast.Attribute):
            return value.attr in ("data", "T", "mT") and self._tensor(value.value)
        if isinstance(value, ast.UnaryOp):
            return self._tensor(value.operand)
        if isinstance(value, ast.BinOp):
            return self._arithmetic(value.left, value.right)
        if isinstance(value, ast.Call):
            return self._op(value) or self._made(value)
        return False

    def _arithmetic(self, left: ast.expr, right: ast.expr) -> bool:
        """With a tensor on one side, and a tensor or a number on the other: all else may have operators of its own."""
        one, two = self._tensor(left), self._tensor(right)
        return (one and (two or _number(right))) or (two and _number(left))

    def _op(self, call: ast.Call) -> bool:
        """A function of torch's, or a method of a tensor."""
        func = call.func
        if isinstance(func, ast.Name):
            home, _, name = self._torch.get(func.id, "").rpartition(".")
            return home in _PLACES and _known(name)
        if not isinstance(func, ast.Attribute) or not _known(func.attr):
            return False
        return self._dotted(func.value) in _PLACES or self._tensor(func.value)

    def _made(self, call: ast.Call) -> bool:
        """torch.ones(3), nn.Parameter(...), x.to(...)"""
        func = call.func
        if isinstance(func, ast.Name):
            home, _, name = self._torch.get(func.id, "").rpartition(".")
        elif isinstance(func, ast.Attribute):
            if func.attr in table.CONVERSIONS - {"data_ptr", "type"} and self._tensor(func.value):
                return True
            home, name = self._dotted(func.value), func.attr
        else:
            return False
        return (home == "torch" and name in table.FACTORIES - {"load"}) or (
            home == "torch.nn" and name == "Parameter"
        )

    def _name(self, name: str) -> bool:
        """Lines that bind it by way of itself (`x = x * 2`) are sure if the others are."""
        if self._nothing or name not in self._bound:
            return False
        if name not in self._asked:
            self._asked[name] = True
            sure = all(self._tensor(value) for value in self._bound[name])
            if not sure:
                self._asked.clear()  # what rested on it
            self._asked[name] = sure
        return self._asked[name]

    def _dotted(self, node: ast.expr) -> str:
        """`F` -> torch.nn.functional"""
        if isinstance(node, ast.Name):
            return self._torch.get(node.id, "")
        if isinstance(node, ast.Attribute):
            above = self._dotted(node.value)
            return f"{above}.{node.attr}" if above else ""
        return ""

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for name, behind in _imported(node):
                if name == "*":
                    self._nothing = True
                elif behind.partition(".")[0] == "torch" and self._torch.get(name, behind) == behind:
                    self._torch[name] = behind
                else:
                    self._bind(name, _UNSURE)
        elif (
            isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        ):
            self._bind(node.targets[0].id, node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if node.value is not None:
                self._bind(node.target.id, node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            load = ast.Name(node.target.id, ast.Load())
            self._bind(node.target.id, ast.BinOp(load, node.op, node.value))
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension, ast.NamedExpr)):
            self._bind_all(node.target)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind_all(target)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._bind_all(node.optional_vars)
        elif isinstance(node, ast.arg):
            self._bind(node.arg, _UNSURE)
        elif isinstance(node, _NAMED):
            if node.name is not None:
                self._bind(node.name, _UNSURE)
        elif isinstance(node, ast.MatchMapping) and node.rest is not None:
            self._bind(node.rest, _UNSURE)
        elif isinstance(node, ast.Name) and node.id in ANY | {"setattr"}:
            self._nothing = True
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            self._nothing |= _known(node.attr)  # torch.exp = mine, torch.Tensor.exp = mine

    def _bind(self, name: str, value: ast.expr) -> None:
        self._bound.setdefault(name, []).append(value)

    def _bind_all(self, target: ast.AST) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._bind(node.id, _UNSURE)


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Each name that it binds, and what that stands for."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, f"{'.' * node.level}{node.module or ''}.{alias.name}"
        elif alias.asname:
            yield alias.asname, alias.name
        else:
            top = alias.name.partition(".")[0]
            yield top, top


def _known(name: str) -> bool:
    return not name.startswith("_") and table.op(name) is not None


def _new(call: ast.Call) -> bool:
    """Whether what it gives has memory of its own."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if any(word.arg in (None, "out", "inplace") for word in call.keywords):
        return False
    info = table.op(name)
    return info is not None and not info.view and not name.endswith("_") and name not in _SAME


def _number(value: ast.expr) -> bool:
    if isinstance(value, ast.UnaryOp):
        return _number(value.operand)
    return isinstance(value, ast.Constant) and isinstance(value.value, (int, float, complex))
