"""Expressions: names, operators, comprehensions, tests; what an iteration gives; what an index gives."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from gradmend.check.project import Module
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
    Lazy,
    ModuleValue,
    Opaque,
    Partial,
    Path,
    Seq,
    Tensor,
    Value,
    unknown,
)
from gradmend.check.walk.questions import Questions, is_none

BINARY: dict[type, str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow", ast.MatMult: "matmul",
    ast.FloorDiv: "floor_divide", ast.Mod: "remainder", ast.BitAnd: "bitwise_and", ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor", ast.LShift: "bitwise_left_shift", ast.RShift: "bitwise_right_shift",
}  # fmt: skip
SYMBOL: dict[type, str] = {
    ast.Add: "+=", ast.Sub: "-=", ast.Mult: "*=", ast.Div: "/=", ast.Pow: "**=", ast.FloorDiv: "//=", ast.Mod: "%=",
    ast.BitAnd: "&=", ast.BitOr: "|=", ast.BitXor: "^=", ast.LShift: "<<=", ast.RShift: ">>=",
}  # fmt: skip
_FOLD: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_THERE = (Seq, Dict, Instance, Function, Class, Ext, Bound, Partial, ModuleValue)  # never None


class Expressions(Questions):
    def eval(self, node: ast.expr) -> Value:
        self.left -= 1
        if self.left < 0:
            self.spend(0)
        do = _DO.get(type(node))
        return do(self, node) if do is not None else unknown()

    # --- names

    def _name(self, node: ast.Name) -> Value:
        return self.look_up(node.id)

    def look_up(self, name: str) -> Value:
        frame = self.frame
        value = frame.env.get(name)
        if value is None:
            for env in frame.outer:
                if name in env:
                    value = env[name]
                    break
            else:
                value = frame.module.env.get(name)
                if value is None:
                    return Ext(f"builtins.{name}") if name in _BUILTINS else self._free(name)
        if isinstance(value, Lazy):
            value = self.resolve(value)
        if isinstance(value, Alt):
            options = self.options(value)
            if len(options) == 1:
                return options[0][1]
        return value

    def _free(self, name: str) -> Value:
        if name == "__name__":
            return Const("__main__") if self.frame.module.main else unknown(name)
        made = self.starred(self.frame.module, name) or unknown(name)
        self.frame.module.env[name] = made
        return made

    def starred(self, module: Module, name: str, deep: int = 0) -> Value | None:
        """A name that `from x import *` may have brought."""
        for source in module.stars if deep < 3 else ():
            self.declare(source)
            there = source.env.get(name) or self.starred(source, name, deep + 1)
            if there is not None:
                return self.force(there)
        return None

    def resolve(self, lazy: Lazy) -> Value:
        """Found out once, then kept in the module's own names."""
        module = lazy.module
        node: Any = lazy.node
        if node is None:
            self.declare(module)
            there = module.env.get(lazy.name)
            if there is None:
                inner = (
                    self.project.find(module, lazy.name, 1) if module.file.endswith("__init__.py") else None
                )
                there = (
                    ModuleValue(inner)
                    if inner is not None
                    else self.starred(module, lazy.name) or unknown(lazy.name)
                )
                module.env[lazy.name] = there
            if there is lazy:
                return unknown(lazy.name)
            return self.resolve(there) if isinstance(there, Lazy) else there
        from gradmend.check.walk.core import Frame

        module.env[lazy.name] = hold = unknown(lazy.name)  # against cycles
        if len(self.frames) > 40:
            return hold
        self.frames.append(Frame(module, module.env))
        journals, self.journals = self.journals, []
        try:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                value = self.define(node, self.frame)
            elif isinstance(node, ast.ClassDef):
                value = self.define_class(node, self.frame)
            else:
                value = self.eval(node)
        finally:
            self.frames.pop()
            self.journals = journals
        module.env[lazy.name] = value
        return value

    def _constant(self, node: ast.Constant) -> Value:
        return NONE if node.value is None else Const(node.value)

    def _attribute(self, node: ast.Attribute) -> Value:
        owner = self.eval(node.value)
        if type(owner) is Ext:
            return Ext(f"{owner.name}.{node.attr}")
        return self.over(owner, lambda v: self.attribute(v, node.attr, node))

    attribute: Callable[[Value, str, ast.AST], Value]
    apply: Callable[..., Value]
    index: Callable[..., Value]
    comparison: Callable[..., Value]
    rows: Callable[..., Tensor]
    method_of: Callable[[Instance, str], Value | None]
    call_value: Callable[..., Value]
    module_items: Callable[[Instance], list[Value] | None]

    # --- operators

    def _binary(self, node: ast.BinOp) -> Value:
        left, right = self.eval(node.left), self.eval(node.right)
        if type(left) is Const and type(right) is Const:
            fold = _FOLD.get(type(node.op))
            if fold is not None and _small(left.value) and _small(right.value):
                try:
                    made = fold(left.value, right.value)
                except Exception:
                    return unknown()
                if type(node.op) is ast.Mod and (left.soft or right.soft):
                    return unknown()  # which of the rounds it is, nobody knows
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
        if self.is_array(left) or self.is_array(right):
            return self.numpy_result()
        return self.apply(BINARY.get(type(node.op), "add"), node, {"self": left, "other": right})

    def is_array(self, value: Value) -> bool:
        return isinstance(value, Instance) and value.nn == "ndarray"

    def numpy_result(self) -> Value:
        from gradmend.check.values import Storage

        made = Instance(None, "ndarray")
        tensor = Tensor((Storage(kind="numpy"),))
        tensor.quiet = "numpy"
        made.attrs["memory"] = tensor
        return made

    def _unary(self, node: ast.UnaryOp) -> Value:
        value = self.eval(node.operand)
        if isinstance(node.op, ast.Not):
            known = self.truthy(value)
            return unknown() if known is None else Const(not known)
        if isinstance(value, Const):
            try:
                if isinstance(node.op, ast.USub):
                    return Const(-value.value, value.soft)
                return Const(~value.value if isinstance(node.op, ast.Invert) else +value.value, value.soft)
            except TypeError:
                return unknown()
        if isinstance(node.op, ast.Invert):
            return self.apply("bitwise_not", node, {"self": value})
        return self.apply("neg", node, {"self": value})

    def _compare(self, node: ast.Compare) -> Value:
        left = self.eval(node.left)
        rights = [self.eval(c) for c in node.comparators]
        if len(rights) != 1:
            return unknown()
        known = self.compared(left, node.ops[0], rights[0])
        if known is not None:
            return Const(known)
        if isinstance(left, Tensor) or isinstance(rights[0], Tensor):
            return self.comparison(node)
        return unknown()

    def compared(self, left: Value, op: ast.cmpop, right: Value) -> bool | None:
        """What the comparison gives, where all that it may be agrees."""
        answers = set()
        for _, a in self.options(left):
            for _, b in self.options(right):
                answers.add(_compared(a, op, b))
                if len(answers) > 1:
                    return None
        return answers.pop() if len(answers) == 1 else None

    def _bool(self, node: ast.BoolOp) -> Value:
        stop = isinstance(node.op, ast.Or)
        value: Value = NONE
        for i, part in enumerate(node.values):
            value = self.eval(part)
            known = self.truthy(value)
            if known is None:
                for rest in node.values[i + 1 :]:
                    later = self.eval(rest)
                    if isinstance(value, (Const, Opaque)) and not isinstance(later, Const):
                        value = later
                return value
            if known == stop:
                return value
        return value

    def _if_exp(self, node: ast.IfExp) -> Value:
        known = self.truth(node.test)
        if known is not None:
            return self.eval(node.body if known else node.orelse)
        condition, side = self.condition(node.test)
        for there, taken in self.path:
            if there == condition:
                return self.eval(node.body if taken == side else node.orelse)
        got: list[tuple[Path, Value]] = []

        def walk(expr: ast.expr, holds: bool) -> str:
            self.narrow(node.test, holds)
            got.append((((condition, side == holds),), self.eval(expr)))
            return ""

        self.arm(condition, side, lambda: walk(node.body, True))
        self.arm(condition, not side, lambda: walk(node.orelse, False))
        return self.either(got)

    # --- containers

    def _list(self, node: Any) -> Value:
        items: list[Value] = []
        rest: Value | None = None
        for element in node.elts:
            if isinstance(element, ast.Starred):
                inner = self.eval(element.value)
                items += self.iterate(inner, element.value)
                if isinstance(inner, Seq) and inner.rest is not None:
                    rest = inner.rest
            else:
                value = self.eval(element)
                self.share(value)
                items.append(value)
        return Seq(items, "tuple" if isinstance(node, ast.Tuple) else "list", rest)

    def _dict(self, node: ast.Dict) -> Value:
        made = Dict({})
        for key, value in zip(node.keys, node.values, strict=True):
            got = self.eval(value)
            if key is None:
                if isinstance(got, Dict):
                    made.items.update(got.items)
                    made.rest = made.rest or got.rest
                continue
            name = self.eval(key)
            if isinstance(name, Const) and _hashable(name.value):
                made.items[name.value] = got
            else:
                made.rest = got
        return made

    def _comprehension(self, node: Any) -> Value:
        found: list[Value] = []
        keys: list[Value] = []
        more: list[Value] = []  # sources of unknown length
        before = self.path
        saved: dict[str, Value | None] = {}
        env = self.frame.env

        def level(i: int) -> None:
            if i == len(node.generators):
                if isinstance(node, ast.DictComp):
                    keys.append(self.eval(node.key))
                    found.append(self.eval(node.value))
                else:
                    found.append(self.eval(node.elt))
                return
            generator = node.generators[i]
            source = self.eval(generator.iter)
            items = self.iterate(source, generator.iter)
            if isinstance(source, Seq) and source.rest is not None:
                more.append(source)
            most = 8 if i == 0 and len(items) <= 8 else 2
            for item in items[:most]:
                for name in ast.walk(generator.target):
                    if isinstance(name, ast.Name) and name.id not in saved:
                        saved[name.id] = env.get(name.id)
                self.bind(generator.target, item)
                skip = False
                for test in generator.ifs:
                    known = self.truth(test)
                    skip = skip or known is False
                if not skip:
                    level(i + 1)
                self.path = before

        level(0)
        for name, old in saved.items():
            if old is None:
                env.pop(name, None)
            else:
                env[name] = old
        if isinstance(node, ast.DictComp):
            made = Dict({})
            for key, value in zip(keys, found, strict=True):
                if isinstance(key, Const) and _hashable(key.value) and not key.soft:
                    made.items[key.value] = value
                else:
                    made.rest = value
            return made
        return Seq(found, rest=found[-1] if more and found else None)

    def _lambda(self, node: ast.Lambda) -> Value:
        frame = self.frame
        return Function(node, frame.module, (frame.env, *frame.outer) if frame.function is not None else ())

    def _subscript(self, node: ast.Subscript) -> Value:
        owner = self.eval(node.value)
        return self.over(owner, lambda v: self.item(v, node))

    def item(self, owner: Value, node: ast.Subscript) -> Value:
        if isinstance(owner, Ext):
            return owner  # Optional[int], list[int]
        at = node.slice
        if isinstance(owner, Seq):
            if isinstance(at, ast.Slice):
                return self._slice(owner, at)
            return self.nth(owner, self.eval(at))
        if isinstance(owner, Dict):
            key = self.eval(at)
            if isinstance(key, Const) and _hashable(key.value):
                if key.value in owner.items:
                    return owner.items[key.value]
                if not key.soft:
                    made = owner.rest or unknown(str(key.value))
                    owner.items[key.value] = made
                    return made
            return owner.rest or (self.any_of(list(owner.items.values())) if owner.items else unknown())
        if isinstance(owner, Tensor) or (isinstance(owner, Opaque) and _array_index(at)):
            return self.index(owner, at, node)
        if isinstance(owner, Instance):
            return self._instance_item(owner, at, node)
        key = self.eval(at)
        if isinstance(owner, Opaque):
            name = f"[{key.value!r}]" if isinstance(key, Const) and not key.soft else "[]"
            if name == "[]":
                return unknown()
            return owner.attrs.setdefault(name, unknown(f"{owner.name}{name}"))
        return unknown()

    def _instance_item(self, owner: Instance, at: ast.expr, node: ast.Subscript) -> Value:
        if owner.nn == "ndarray":
            self.eval(at)
            # Basic slices share memory; which they are is not worth knowing.
            return owner
        items = self.module_items(owner)
        if items is not None:
            if isinstance(at, ast.Slice):
                made = Instance(None, owner.nn)
                made.attrs["items"] = self._slice(Seq(items), at)
                return made
            return self.nth(Seq(items), self.eval(at))
        method = self.method_of(owner, "__getitem__")
        key = self.eval(at)
        if method is not None:
            return self.call_value(method, [key], {}, node)
        if owner.nn == "optim":
            return unknown()
        name = f"[{key.value!r}]" if isinstance(key, Const) else "[]"
        return owner.attrs.setdefault(name, unknown(name))

    def nth(self, owner: Seq, key: Value) -> Value:
        if isinstance(key, Const) and isinstance(key.value, int):
            n = key.value
            if -len(owner.items) <= n < len(owner.items) and (n >= 0 or owner.rest is None):
                return owner.items[n]
            if owner.rest is not None:
                return owner.rest
        return self.element(owner)

    def _slice(self, owner: Seq, at: ast.Slice) -> Seq:
        bounds = [self.eval(b) if b is not None else NONE for b in (at.lower, at.upper, at.step)]
        if (
            all(isinstance(b, Const) and (b.value is None or isinstance(b.value, int)) for b in bounds)
            and owner.rest is None
        ):
            try:
                return Seq(owner.items[slice(*(b.value for b in bounds))], owner.kind)  # type: ignore[attr-defined]
            except ValueError:
                pass
        return Seq(list(owner.items), owner.kind, owner.rest)

    def any_of(self, items: list[Value]) -> Value:
        """One of these, nobody knows which."""
        if not items:
            return unknown()
        if len(items) == 1:
            return items[0]
        tag = self.ledger.now()
        return self.either([(((("item", tag, i), True),), item) for i, item in enumerate(items[:4])])

    def element(self, value: Value) -> Value:
        if isinstance(value, Seq):
            items = [*value.items, *([value.rest] if value.rest is not None else [])]
            return self.any_of(items)
        found = self.iterate(value, None)
        return found[0] if found else unknown()

    def split(self, value: Value, n: int) -> list[Value]:
        if isinstance(value, Seq):
            items = list(value.items)
            if len(items) == n:
                return items
            while len(items) < n:
                items.append(value.rest or unknown())
            return items[:n]
        if isinstance(value, Alt):
            columns: list[list[tuple[Path, Value]]] = [[] for _ in range(n)]
            for path, option in self.options(value):
                if isinstance(option, Const):
                    continue
                for i, part in enumerate(self.split(option, n)):
                    columns[i].append((path, part))
            return [self.either(c) if c else unknown() for c in columns]
        if isinstance(value, Tensor):
            if value.opaque and value.node is not None:
                return [self.sibling(value) for _ in range(n)]
            return [self.rows(value) for _ in range(n)]
        if isinstance(value, Opaque):
            return [value.attrs.setdefault(f"[{i}]", unknown(f"{value.name}[{i}]")) for i in range(n)]
        if isinstance(value, Instance):
            parts = self.iterate(value, None)
            return [parts[i] if i < len(parts) else unknown() for i in range(n)]
        return [unknown() for _ in range(n)]

    def sibling(self, value: Tensor) -> Tensor:
        """Another result of the same call: its own memory, the same history."""
        from gradmend.check.values import Storage

        made = Tensor((Storage(kind=value.storages[0].kind),), value.grad, value.node)
        made.opaque, made.leaf = value.opaque, False
        return made

    def iterate(self, value: Value, node: ast.expr | None) -> list[Value]:
        """What a loop over it would bind, a few of them."""
        if isinstance(value, Seq):
            items = list(value.items)
            return items + [value.rest] * max(1, 2 - len(items)) if value.rest is not None else items
        if isinstance(value, Alt):
            for _, option in self.options(value):
                if not isinstance(option, Const):
                    return self.iterate(option, node)
            return []
        if isinstance(value, Tensor):
            if value.opaque and value.node is None:
                return [unknown(), unknown()]
            return [self.rows(value), self.rows(value)]
        if isinstance(value, Dict):
            keys: list[Value] = [Const(k) for k in value.items]
            return keys if value.rest is None else [*keys, unknown()]
        if isinstance(value, Instance):
            held = self.module_items(value)
            if held is not None:
                return list(held)
            method = self.method_of(value, "__iter__")
            if method is not None:
                inner = self.call_value(method, [], {}, node or ast.Constant(None))
                if inner is not value and not isinstance(inner, Instance):
                    return self.iterate(inner, node)
            getter = self.method_of(value, "__getitem__")
            if getter is not None:
                return [
                    self.call_value(getter, [Const(i, True)], {}, node or ast.Constant(None))
                    for i in range(2)
                ]
            return [unknown(), unknown()]
        if isinstance(value, Const):
            return [Const(c) for c in value.value[:2]] if isinstance(value.value, str) else []
        return [unknown(), unknown()]

    # --- the rest

    def _yield(self, node: ast.Yield) -> Value:
        self.frame.yields.append(self.eval(node.value) if node.value is not None else NONE)
        return unknown()

    def _yield_from(self, node: ast.YieldFrom) -> Value:
        self.frame.yields += self.iterate(self.eval(node.value), node.value)
        return unknown()

    def _await(self, node: ast.Await) -> Value:
        return self.eval(node.value)

    def _named(self, node: ast.NamedExpr) -> Value:
        value = self.eval(node.value)
        self.bind(node.target, value)
        return value

    def _starred(self, node: ast.Starred) -> Value:
        return self.eval(node.value)

    def _call(self, node: ast.Call) -> Value:
        return self.call(node)


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


def _near(value: Const) -> bool:
    """A loop's first rounds are told apart from the others by 0 and 1, not by what comes later."""
    return value.soft or (isinstance(value.value, int) and value.value <= 1)


def _small(value: Any) -> bool:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return abs(value) < 1e9
    return isinstance(value, str) and len(value) < 200


def _hashable(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool, type(None), tuple, bytes))


def _array_index(at: ast.expr) -> bool:
    if isinstance(at, ast.Tuple):
        return any(_array_index(e) or isinstance(e, (ast.Constant, ast.Name)) for e in at.elts)
    return (
        isinstance(at, ast.Slice)
        or (isinstance(at, ast.Constant) and at.value in (None, Ellipsis))
        or isinstance(at, ast.Compare)
    )


_BUILTINS = frozenset(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)
_DO: dict[type, Callable[..., Value]] = {
    ast.Name: Expressions._name,
    ast.Constant: Expressions._constant,
    ast.Attribute: Expressions._attribute,
    ast.BinOp: Expressions._binary,
    ast.UnaryOp: Expressions._unary,
    ast.Compare: Expressions._compare,
    ast.BoolOp: Expressions._bool,
    ast.IfExp: Expressions._if_exp,
    ast.List: Expressions._list,
    ast.Tuple: Expressions._list,
    ast.Set: Expressions._list,
    ast.Dict: Expressions._dict,
    ast.ListComp: Expressions._comprehension,
    ast.SetComp: Expressions._comprehension,
    ast.GeneratorExp: Expressions._comprehension,
    ast.DictComp: Expressions._comprehension,
    ast.Lambda: Expressions._lambda,
    ast.Subscript: Expressions._subscript,
    ast.Yield: Expressions._yield,
    ast.YieldFrom: Expressions._yield_from,
    ast.Await: Expressions._await,
    ast.NamedExpr: Expressions._named,
    ast.Starred: Expressions._starred,
    ast.Call: Expressions._call,
}
