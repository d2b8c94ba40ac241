"""Expressions: operators, comparisons, conditional values."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gradmend.check.values import (
    NONE,
    Bound,
    Class,
    Const,
    Dict,
    Ext,
    Function,
    Instance,
    ModuleValue,
    Number,
    Opaque,
    Partial,
    Path,
    Seq,
    Tensor,
    Value,
    is_none,
    unknown,
)
from gradmend.check.walk.operators import BINARY
from gradmend.check.walk.paths import same
from gradmend.check.walk.sparse import is_sparse

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker

_FOLD: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_THERE = (Seq, Dict, Instance, Function, Class, Ext, Bound, Partial, ModuleValue)  # never None


class Expressions:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def table(self) -> dict[type, Callable[[Any], Value]]:
        """Which of these takes which kind of syntax."""
        return {
            ast.Constant: self._constant,
            ast.Attribute: self._attribute,
            ast.BinOp: self._binary,
            ast.UnaryOp: self._unary,
            ast.Compare: self._compare,
            ast.BoolOp: self._bool,
            ast.IfExp: self._if_exp,
            ast.Lambda: self._lambda,
            ast.Yield: self._yield,
            ast.YieldFrom: self._yield_from,
            ast.Await: self._await,
            ast.NamedExpr: self._named,
            ast.Starred: self._starred,
            ast.Call: self._call,
        }

    def _constant(self, node: ast.Constant) -> Value:
        return NONE if node.value is None else Const(node.value)

    def _attribute(self, node: ast.Attribute) -> Value:
        owner = self.walk.eval(node.value)
        if type(owner) is Ext:
            return Ext(f"{owner.name}.{node.attr}")
        return self.walk.over(owner, lambda v: self.walk.attributes.attribute(v, node.attr, node))

    def _binary(self, node: ast.BinOp) -> Value:
        """A long sum is a chain to the left: gone down by a loop, so that its length is no depth."""
        chain = [node]
        while isinstance(chain[-1].left, ast.BinOp):
            chain.append(chain[-1].left)
            self.walk.spend()
        value = self.walk.eval(chain[-1].left)
        for one in reversed(chain):
            value = self._operator(one, value, self.walk.eval(one.right))
        return value

    def _operator(self, node: ast.BinOp, left: Value, right: Value) -> Value:
        if type(left) is Const and type(right) is Const:
            fold = _FOLD.get(type(node.op))
            if fold is not None and _small(left.value) and _small(right.value):
                try:
                    made = fold(left.value, right.value)
                except Exception:
                    return unknown()
                if type(node.op) is ast.Mod and (left.soft or right.soft):
                    return Number()  # which of the rounds it is, nobody knows
                return Const(made, left.soft or right.soft)
            return unknown()
        if isinstance(left, Seq) and isinstance(right, Seq) and type(node.op) is ast.Add:
            return Seq([*left.items, *right.items], left.kind, left.rest or right.rest)
        if isinstance(left, Seq) and type(node.op) is ast.Mult:
            return Seq(
                list(left.items) * 2 if len(left.items) < 5 else list(left.items), left.kind, left.rest
            )
        if isinstance(left, Const) and isinstance(left.value, str):
            return unknown()
        if self.walk.arrays.is_array(left) or self.walk.arrays.is_array(right):
            return self.walk.arrays.numpy_result()
        op = BINARY.get(type(node.op), "add")
        if is_sparse(left) or is_sparse(right):
            return self.walk.sparse.operator(op, left, right, node)
        return self.arithmetic(op, left, right, node)

    def arithmetic(self, op: str, left: Value, right: Value, node: ast.AST) -> Value:
        apply = self.walk.tensors.apply
        if op == "div" and isinstance(left, (Const, Number)):
            # A number by a tensor is the number times its reciprocal, which is kept, and nobody has that one.
            inverse = apply("reciprocal", node, {"self": right}, shown="/")
            return apply("mul", node, {"self": inverse, "other": left}, shown="/")
        if op == "pow" and any(not tensor.opaque for _, tensor in self.walk.tensors_in(right)):
            return apply(op, node, {"self": left, "exponent": right})
        return apply(op, node, {"self": left, "other": right})

    def _unary(self, node: ast.UnaryOp) -> Value:
        value = self.walk.eval(node.operand)
        if isinstance(node.op, ast.Not):
            known = self.walk.questions.truthy(value)
            return unknown() if known is None else Const(not known)
        if isinstance(value, Const):
            try:
                if isinstance(node.op, ast.USub):
                    return Const(-value.value, value.soft)
                return Const(~value.value if isinstance(node.op, ast.Invert) else +value.value, value.soft)
            except TypeError:
                return unknown()
        if isinstance(node.op, ast.UAdd):
            return value  # the tensor itself
        if isinstance(node.op, ast.Invert):
            return self.walk.tensors.apply("bitwise_not", node, {"self": value})
        return self.walk.tensors.apply("neg", node, {"self": value})

    def _compare(self, node: ast.Compare) -> Value:
        left = self.walk.eval(node.left)
        rights = [self.walk.eval(c) for c in node.comparators]
        if len(rights) != 1:
            return unknown()
        if isinstance(node.ops[0], (ast.In, ast.NotIn)):
            among = _among(left, rights[0])
            return unknown() if among is None else Const(among == isinstance(node.ops[0], ast.In))
        known = self.compared(left, node.ops[0], rights[0])
        if known is None:
            known = self._last_round(node)
        if known is not None:
            return Const(known)
        if isinstance(left, Tensor) or isinstance(rights[0], Tensor):
            return self.walk.tensors.comparison(node)
        return unknown()

    def _last_round(self, node: ast.Compare) -> bool | None:
        """`i < len(layers) - 1`, `i + 1 == n`: whether this is the last round, asked in the last that is walked."""
        match node:
            case ast.Compare(ast.Name() as counter, [op], [ast.BinOp(bound, ast.Sub(), ast.Constant(1))]):
                pass
            case ast.Compare(ast.BinOp(ast.Name() as counter, ast.Add(), ast.Constant(1)), [op], [bound]):
                pass
            case _:
                return None
        value = self.walk.eval(counter)
        if isinstance(bound, ast.Constant) or not (isinstance(value, Const) and value.last):
            return None
        return _IN_THE_LAST.get(type(op))

    def compared(self, left: Value, op: ast.cmpop, right: Value) -> bool | None:
        """What the comparison gives, where all that it may be agrees."""
        answers = set()
        for _, a in self.walk.options(left):
            for _, b in self.walk.options(right):
                answers.add(_compared(a, op, b))
                if len(answers) > 1:
                    return None
        return answers.pop() if len(answers) == 1 else None

    def _bool(self, node: ast.BoolOp) -> Value:
        stop = isinstance(node.op, ast.Or)
        value: Value = NONE
        for i, part in enumerate(node.values):
            value = self.walk.eval(part)
            known = self.walk.questions.truthy(value)
            if known is None:
                for rest in node.values[i + 1 :]:
                    later = self.walk.eval(rest)
                    if isinstance(value, (Const, Opaque)) and not isinstance(later, Const):
                        value = later
                return value
            if known == stop:
                return value
        return value

    def _if_exp(self, node: ast.IfExp) -> Value:
        known = self.walk.questions.truth(node.test)
        if known is not None:
            return self.walk.eval(node.body if known else node.orelse)
        asked = self.walk.questions.asked(node.test)
        known = self.walk.questions.answered(asked)
        if known is not None:
            return self.walk.eval(node.body if known else node.orelse)
        got: list[tuple[Path, Value]] = []

        def walk(expr: ast.expr, holds: bool) -> str:
            self.walk.questions.narrow(node.test, holds)
            also = asked.if_yes if holds else asked.if_no
            got.append((((asked.condition, asked.side == holds), *also), self.walk.eval(expr)))
            return ""

        self.walk.arms(asked, lambda: walk(node.body, True), lambda: walk(node.orelse, False))
        return self.walk.either(got)

    def _lambda(self, node: ast.Lambda) -> Value:
        frame = self.walk.frame
        return Function(node, frame.module, (frame.env, *frame.outer) if frame.function is not None else ())

    def _yield(self, node: ast.Yield) -> Value:
        frame = self.walk.frame
        value = self.walk.eval(node.value) if node.value is not None else NONE
        frame.yields.append(value)
        if frame.block is not None:
            frame.block(value)
        return unknown()

    def _yield_from(self, node: ast.YieldFrom) -> Value:
        frame = self.walk.frame
        for item in self.walk.iteration.iterate(self.walk.eval(node.value), node.value):
            frame.yields.append(item)
            if frame.block is not None:
                frame.block(item)
        return unknown()

    def _await(self, node: ast.Await) -> Value:
        return self.walk.eval(node.value)

    def _named(self, node: ast.NamedExpr) -> Value:
        value = self.walk.eval(node.value)
        self.walk.statements.bind(node.target, value)
        return value

    def _starred(self, node: ast.Starred) -> Value:
        return self.walk.eval(node.value)

    def _call(self, node: ast.Call) -> Value:
        return self.walk.calls.call(node)


_IN_THE_LAST = {ast.Eq: True, ast.GtE: True, ast.NotEq: False, ast.Lt: False}


def _compared(a: Value, op: ast.cmpop, b: Value) -> bool | None:
    if isinstance(op, (ast.Is, ast.IsNot)):
        if is_none(b):
            if is_none(a):
                answer = True
            elif isinstance(a, (_THERE, Const)) or (isinstance(a, Tensor) and not a.opaque):
                answer = False
            else:
                return None
            return answer == isinstance(op, ast.Is)
        if isinstance(a, Const) and isinstance(b, Const) and not same(a, b) and not (a.soft or b.soft):
            return isinstance(op, ast.IsNot)  # members of an Enum too
        return None
    if isinstance(a, Const) and isinstance(b, Const):
        compare = _COMPARE.get(type(op))
        if compare is None:
            return None
        if (a.soft and not _near(b)) or (b.soft and not _near(a)):
            return None
        try:
            return bool(compare(a.value, b.value))
        except TypeError:
            return None
    return None


def _among(value: Value, held: Value) -> bool | None:
    """`mode in ("a", "b")`, where all of it is known."""
    if not isinstance(value, Const) or value.soft or not isinstance(held, Seq) or held.rest is not None:
        return None
    if not all(isinstance(item, Const) and not item.soft for item in held.items):
        return None
    return any(same(value, item) for item in held.items)


def _near(value: Const) -> bool:
    """A loop's first rounds are told apart from the others by 0 and 1, not by what comes later."""
    return value.soft or (isinstance(value.value, int) and value.value <= 1)


def _small(value: Any) -> bool:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return abs(value) < 1e9
    return isinstance(value, str) and len(value) < 200
