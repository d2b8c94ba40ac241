"""Tests: what is known of their answer, and how two tests are known to ask the same."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from gradmend.check.values import (
    NONE,
    Alt,
    Bound,
    Class,
    Const,
    Function,
    Instance,
    ModuleValue,
    Opaque,
    Seq,
    Value,
    is_none,
)

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker

_POSITIVE: dict[type, type] = {ast.IsNot: ast.Is, ast.NotEq: ast.Eq, ast.NotIn: ast.In}
_PURE = frozenset({"isinstance", "hasattr", "len", "callable", "bool", "issubclass"})


class Questions:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def truthy(self, value: Value) -> bool | None:
        answers = set()
        for _, option in self.walk.options(value):
            answers.add(_truthy(option))
            if len(answers) > 1:
                return None
        return answers.pop() if len(answers) == 1 else None

    def truth(self, test: ast.expr) -> bool | None:
        return self.truthy(self.walk.eval(test))

    def condition(self, test: ast.expr) -> tuple[Any, bool]:
        """What the test asks, so that the same question has the same answer, and which arm is the "yes"."""
        side = True
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, side = test.operand, not side
        if (
            isinstance(test, ast.Compare)
            and len(test.ops) == 1
            and isinstance(test.ops[0], (ast.IsNot, ast.NotEq, ast.NotIn))
        ):
            side = not side
        key = self._question(test, 0)
        return (key if key is not None else ("if", id(test), self.walk.ledger.now())), side

    def _question(self, node: Any, deep: int) -> Any:
        if deep > 6:
            return None
        kind = type(node)
        if kind in (ast.Name, ast.Attribute):
            value = self.walk.eval(node)
            return ("c", repr(value.value)) if isinstance(value, Const) else ("v", value)
        if kind is ast.Constant:
            return ("c", repr(node.value))
        parts: list[Any]
        if kind is ast.Compare:
            op = type(node.ops[0])
            parts = [
                _POSITIVE.get(op, op),
                *(self._question(n, deep + 1) for n in (node.left, *node.comparators)),
            ]
        elif kind is ast.BoolOp:
            parts = [type(node.op), *(self._question(n, deep + 1) for n in node.values)]
        elif kind is ast.UnaryOp:
            parts = [type(node.op), self._question(node.operand, deep + 1)]
        elif (
            kind is ast.Call
            and isinstance(node.func, ast.Name)
            and node.func.id in _PURE
            and not node.keywords
        ):
            parts = [node.func.id, *(self._question(n, deep + 1) for n in node.args)]
        elif kind is ast.Tuple:
            parts = ["tuple", *(self._question(n, deep + 1) for n in node.elts)]
        else:
            return None
        return None if any(p is None for p in parts) else tuple(parts)

    def narrow(self, test: ast.expr, holds: bool) -> None:
        """Inside an arm, a name that was asked about is what the answer says."""
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, holds = test.operand, not holds
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) and holds:
            for part in test.values:
                self.narrow(part, True)
            return
        name: Any = test
        wants_none = not holds
        if (
            isinstance(test, ast.Compare)
            and len(test.ops) == 1
            and isinstance(test.ops[0], (ast.Is, ast.IsNot))
        ):
            right = test.comparators[0]
            if not (isinstance(right, ast.Constant) and right.value is None):
                return
            name = test.left
            wants_none = isinstance(test.ops[0], ast.Is) == holds
        elif not isinstance(test, (ast.Name, ast.Attribute)):
            return
        if isinstance(name, ast.Name):
            env: dict = self.walk.frame.env
            key = name.id
        elif isinstance(name, ast.Attribute) and isinstance(name.value, ast.Name):
            owner = self.walk.frame.env.get(name.value.id)
            if not isinstance(owner, Instance):
                return
            env, key = owner.attrs, name.attr
        else:
            return
        value = env.get(key)
        if isinstance(value, Alt):
            kept = [o for o in value.options if is_none(o[1]) == wants_none or isinstance(o[1], Opaque)]
            if kept and len(kept) < len(value.options):
                self.walk.store(env, key, self.walk.either(kept))
        elif isinstance(value, Opaque) and wants_none and isinstance(test, ast.Compare):
            self.walk.store(env, key, NONE)


def _truthy(value: Value) -> bool | None:
    if isinstance(value, Const):
        if value.soft and value.value not in (0, 1):
            return None
        return None if value.soft and value.value == 1 else bool(value.value)
    if isinstance(value, Seq):
        return True if value.items else (None if value.rest is not None else False)
    if isinstance(value, (Instance, Function, Class, Bound, ModuleValue)):
        return True
    return None
