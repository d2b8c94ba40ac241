"""Tests: what is known of their answer, and how two tests are known to ask the same."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradmend.check.values import (
    NONE,
    Alt,
    Bound,
    Class,
    Const,
    Dict,
    Ext,
    Function,
    Instance,
    ModuleValue,
    Opaque,
    Path,
    Seq,
    Value,
    is_none,
)

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker

# Each comparison as another one, perhaps with its sides swapped, perhaps denied: `n <= 3` is "not n > 3".
_COMPARISONS: dict[type, tuple[str, bool, bool]] = {
    ast.Gt: (">", False, True),
    ast.Lt: (">", True, True),
    ast.LtE: (">", False, False),
    ast.GtE: (">", True, False),
    ast.Eq: ("==", False, True),
    ast.NotEq: ("==", False, False),
    ast.Is: ("is", False, True),
    ast.IsNot: ("is", False, False),
    ast.In: ("in", False, True),
    ast.NotIn: ("in", False, False),
}
_PURE = frozenset({"isinstance", "hasattr", "len", "callable", "bool", "issubclass"})
_BOTH = ((True, False), (False, True))
Question = tuple[Any, bool]  # what is asked, and which answer is the test's "yes"


@dataclass(frozen=True, slots=True)
class Asked:
    """A test: what it asks, which answer is its "yes", and what else holds in either arm."""

    condition: Any
    side: bool
    if_yes: Path = ()
    if_no: Path = ()


class Questions:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def truthy(self, value: Value) -> bool | None:
        answers = set()
        for _, option in self.walk.options(value):
            answers.add(self._truthy(option))
            if len(answers) > 1:
                return None
        return answers.pop() if len(answers) == 1 else None

    def truth(self, test: ast.expr) -> bool | None:
        return self.truthy(self.walk.eval(test))

    def asked(self, test: ast.expr) -> Asked:
        """What the test asks, so that the same question has the same answer on one path."""
        answers = self._answers(test)
        yes = _only([path for path, known in answers if known is not False])
        no = _only([path for path, known in answers if known is not True])
        if len(yes) == len(no) == 1 and yes[0][0] == no[0][0] and (yes[0][1], no[0][1]) in _BOTH:
            return Asked(*yes[0])  # a flag that the arms of a branch set: it asks what that one asked
        found = self._question(test, 0)
        if found is None:
            return Asked(("if", id(test), self.walk.ledger.now()), True, yes, no)
        key, side = found
        return Asked(key, side, (*yes, *_implied(key, side)), (*no, *_implied(key, not side)))

    def answered(self, asked: Asked) -> bool | None:
        """The test's answer, where the path that we are on has given it already."""
        known = dict(self.walk.path)
        there = known.get(asked.condition)
        if there is not None:
            return bool(there == asked.side)
        for also, answer in ((asked.if_yes, False), (asked.if_no, True)):
            if any(known.get(condition, side) != side for condition, side in also):
                return answer
        return None

    def _truthy(self, value: Value) -> bool | None:
        if isinstance(value, Const):
            if value.soft and value.value not in (0, 1):
                return None
            return None if value.soft and value.value == 1 else bool(value.value)
        if isinstance(value, Seq):
            if any(map(self.walk.present, value.items)):
                return True
            return None if value.items or value.rest is not None else False
        if isinstance(value, Instance):
            return None if self._may_be_empty(value) else True
        return True if isinstance(value, (Function, Class, Bound, ModuleValue)) else None

    def _may_be_empty(self, value: Instance) -> bool:
        """Has it a length or a truth of its own? `if np.any(x):` asks the array, not whether there is one."""
        held = value.attrs.get("items", value.attrs.get("dict"))
        if value.nn in ("ndarray", "loader") or (isinstance(held, (Seq, Dict)) and not held.items):
            return True
        find = self.walk.classes.find
        return value.cls is not None and any(find(value.cls, name) for name in ("__bool__", "__len__"))

    def _answers(self, test: ast.expr) -> list[tuple[Path, bool | None]]:
        """What the test says of each value that an earlier branch may have left, with that branch's arms."""
        holds = True
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, holds = test.operand, not holds
        right: Value | None = None
        asks: ast.expr = test
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            asks = test.left
            if not isinstance(test.comparators[0], ast.Constant):
                return []
            right = self.walk.eval(test.comparators[0])
        if not isinstance(asks, (ast.Name, ast.Attribute)):
            return []
        value = self.walk.eval(asks)
        if not isinstance(value, Alt):
            return []
        found: list[tuple[Path, bool | None]] = []
        here = set(self.walk.path)
        for path, option in self.walk.options(value):
            known = (
                self._truthy(option)
                if right is None
                else self.walk.expressions.compared(option, test.ops[0], right)  # type: ignore[attr-defined]
            )
            rest = tuple(pair for pair in path if pair not in here)
            found.append((rest, known if known is None else known == holds))
        return found

    def _question(self, node: Any, deep: int) -> Question | None:
        """A test as (what it asks, its answer): tests that mean the same, or its contrary, ask the same."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._question(node.operand, deep + 1) if deep < 7 else None
            return None if inner is None else (inner[0], not inner[1])
        if isinstance(node, ast.BoolOp) and deep < 7:
            # `a or b` is "not (not a and not b)".
            both = isinstance(node.op, ast.And)
            parts = [self._question(n, deep + 1) for n in node.values]
            if any(p is None for p in parts):
                return None
            # `x and True` asks for x alone.
            asked = [p for p in filter(None, parts) if _constant(p) is not both]
            if len(asked) < 2:
                return asked[0] if asked else None
            return ("and", frozenset((k, side == both) for k, side in asked)), both
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
            word, swapped, side = _COMPARISONS[type(node.ops[0])]
            left, right = self._thing(node.left, deep), self._thing(node.comparators[0], deep)
            if left is None or right is None:
                return None
            return ((word, right, left) if swapped else (word, left, right)), side
        thing = self._thing(node, deep)
        return None if thing is None else (thing, True)

    def _thing(self, node: Any, deep: int) -> Any:
        """What a test speaks of: the same value each time."""
        kind = type(node)
        if deep > 6:
            return None
        if kind in (ast.Name, ast.Attribute):
            value = self.walk.eval(node)
            if isinstance(value, Const):
                return ("c", repr(value.value))
            if isinstance(value, (Dict, Seq)):  # with more in it, the answer may be another
                return ("v", value, len(value.items))
            return ("e", value.name) if isinstance(value, Ext) else ("v", value)
        if kind is ast.Constant:
            return ("c", repr(node.value))
        parts: list[Any]
        if (
            kind is ast.Call
            and isinstance(node.func, ast.Name)
            and node.func.id in _PURE
            and not node.keywords
        ):
            parts = [node.func.id, *(self._thing(n, deep + 1) for n in node.args)]
        elif kind is ast.Tuple:
            parts = ["tuple", *(self._thing(n, deep + 1) for n in node.elts)]
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
        if _asks_class(test):
            name, cls = test.args[0], self.walk.eval(test.args[1])  # type: ignore[attr-defined]
            if isinstance(name, ast.Name) and isinstance(value := self.walk.frame.env.get(name.id), Alt):
                known = [self.walk.builtin.is_instance(o, cls) for _, o in value.options]
                fits = [o for o, is_one in zip(value.options, known, strict=True) if is_one in (holds, None)]
                self._narrowed(self.walk.frame.env, name.id, value, fits)
            return
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
            self._narrowed(env, key, value, kept)
        elif isinstance(value, Opaque) and wants_none and isinstance(test, ast.Compare):
            self.walk.narrow(env, key, NONE)

    def _narrowed(self, env: dict, key: str, value: Alt, kept: list[tuple[Path, Value]]) -> None:
        if kept and len(kept) < len(value.options):
            self.walk.narrow(env, key, self.walk.either(kept))


def _asks_class(test: ast.expr) -> bool:
    return (
        isinstance(test, ast.Call)
        and isinstance(test.func, ast.Name)
        and test.func.id == "isinstance"
        and len(test.args) == 2
    )


def _constant(question: Question) -> bool | None:
    """The answer, where the program wrote it down."""
    key, side = question
    return (key[1] == "True") is side if key in (("c", "True"), ("c", "False")) else None


def _only(paths: list[Path]) -> Path:
    """What holds wherever the answer is this one: nothing, where several ways lead to it."""
    return paths[0] if len(paths) == 1 else ()


def _implied(key: Any, holds: bool) -> Path:
    """What else an answer says: each part of an `and` that holds, and that what equals one constant equals no other."""
    if not holds or type(key) is not tuple:
        return ()
    if key[0] == "and":
        return tuple(pair for part, side in key[1] for pair in ((part, side), *_implied(part, side)))
    if key[0] == "==" and type(key[2]) is tuple and key[2][0] == "c":
        return ((("is one", key[1]), key[2]),)
    return ()
