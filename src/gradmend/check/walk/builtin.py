"""Python's own functions, and copies of values."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradmend.check.values import (
    NO,
    NONE,
    Class,
    Const,
    Dict,
    Ext,
    Instance,
    Number,
    Opaque,
    Seq,
    Storage,
    Tensor,
    Value,
    unknown,
)

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker


class Builtins:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def builtin(self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        first = args[0] if args else None
        if name == "super":
            return self.walk.attributes.make_super(args)
        if name == "range":
            return self._range(args)
        if isinstance(first, Instance) and first.nn == "generator" and name in ("enumerate", "iter"):
            return self.walk.generators.counted(first) if name == "enumerate" else first
        if name == "enumerate" and first is not None:
            items = self.walk.iteration.iterate(first, None)
            counters = _counters(range(len(items)))
            return Seq([Seq([i, v], "tuple") for i, v in zip(counters, items, strict=True)], "iterator")
        if name == "zip":
            columns = [self.walk.iteration.iterate(a, None) for a in args]
            return Seq([Seq(list(row), "tuple") for row in zip(*columns, strict=False)], "iterator")
        if name in ("list", "tuple", "set", "sorted", "reversed", "iter", "frozenset"):
            if first is None:
                return Seq([], "tuple" if name == "tuple" else "list")
            if isinstance(first, Seq):
                items = list(first.items)
                return Seq(
                    items[::-1] if name == "reversed" else items,
                    "tuple" if name == "tuple" else "list",
                    first.rest,
                )
            if isinstance(first, Opaque) or (isinstance(first, Instance) and first.nn == "loader"):
                return first
            return Seq(self.walk.iteration.iterate(first, None), "tuple" if name == "tuple" else "list")
        if name == "next" and first is not None:
            return (
                self.walk.iteration.element(first)
                if not isinstance(first, Seq) or not first.items
                else first.items[0]
            )
        if name == "dict":
            made = Dict({})
            if isinstance(first, Dict):
                made.items.update(first.items)
                made.rest = first.rest
            elif isinstance(first, Seq):
                for pair in first.items:
                    if isinstance(pair, Seq) and len(pair.items) == 2:
                        key = pair.items[0]
                        if isinstance(key, Const) and isinstance(key.value, (str, int)):
                            made.items[key.value] = pair.items[1]
                        else:
                            made.rest = pair.items[1]
            made.items.update(keywords)
            return made
        if name == "sum" and first is not None:
            items = self.walk.iteration.iterate(first, None)
            total: Value = args[1] if len(args) > 1 else Const(0)
            for item in items:
                total = (
                    self.walk.tensors.apply("add", node, {"self": total, "other": item})
                    if self.walk.tensors_in(item)
                    else total
                )
            return total
        if name == "pow" and len(args) == 2:
            return self.walk.expressions.arithmetic("pow", args[0], args[1], node)
        if (
            name in ("max", "min", "abs", "round")
            and first is not None
            and self.walk.tensors_in(first, deep=0)
        ):
            return self.walk.ops.op(name, args, {}, node) if name == "abs" else unknown()
        if name == "map" and len(args) > 1:
            return Seq(
                [
                    self.walk.calls.call_value(args[0], [v], {}, node)
                    for v in self.walk.iteration.iterate(args[1], None)[:4]
                ],
                "iterator",
            )
        if name == "filter" and len(args) > 1:
            return args[1]
        if name == "getattr" and len(args) > 1:
            return self._getattr(args, node)
        if name == "setattr" and len(args) > 2 and isinstance(args[1], Const):
            self.walk.attributes.set_attribute(args[0], str(args[1].value), args[2], node)
            return NONE
        if name == "isinstance" and len(args) > 1:
            known = self.is_instance(args[0], args[1])
            return unknown() if known is None else Const(known)
        if name == "len":
            known_text = isinstance(first, Const) and isinstance(first.value, str)
            return Const(len(first.value)) if known_text else Number()  # type: ignore[union-attr]
        if (
            name in ("float", "int")
            and isinstance(first, Const)
            and isinstance(first.value, (str, int, float))
        ):
            try:
                return Const(float(first.value) if name == "float" else int(first.value), first.soft)
            except (ValueError, OverflowError):
                return unknown()
        if name in ("float", "int", "id", "round", "hash"):
            return Number()
        if name in ("str", "repr", "bool", "print", "hasattr", "type", "format"):
            return unknown(name)
        if name == "property" or name in ("staticmethod", "classmethod"):
            return first or unknown()
        if name == "slice":
            return Const(slice(None))
        return unknown()

    def _range(self, args: list[Value]) -> Value:
        bounds = [a.value if isinstance(a, Const) and isinstance(a.value, int) else None for a in args]
        start = (bounds[0] if len(bounds) > 1 else 0) or 0
        step = (bounds[2] if len(bounds) > 2 else 1) or 1
        stop = bounds[1] if len(bounds) > 1 else (bounds[0] if bounds else None)
        count = 2
        if stop is not None and not any(b is None for b in bounds):
            count = max(0, min(2, len(range(start, stop, step))))
        return Seq(_counters([start + i * step for i in range(count)]), "range")

    def _getattr(self, args: list[Value], node: ast.AST) -> Value:
        key = args[1]
        if isinstance(key, Const) and isinstance(key.value, str):
            return self.walk.over(args[0], lambda v: self.walk.attributes.attribute(v, key.value, node))
        return unknown()

    def is_instance(self, value: Value, cls: Value) -> bool | None:
        wanted = [self.walk.force(c) for c in (cls.items if isinstance(cls, Seq) else [cls])]
        answers = [self._is_one(value, c) for c in wanted]
        if True in answers:
            return True
        return False if all(a is False for a in answers) else None

    def _is_one(self, value: Value, cls: Value) -> bool | None:
        name = cls.name.rpartition(".")[2] if isinstance(cls, Ext) else ""
        if isinstance(value, Tensor) and not value.opaque:
            return name in ("Tensor", "Parameter") if isinstance(cls, Ext) else None
        if isinstance(value, Instance):
            if isinstance(cls, Class):
                return cls in self.walk.classes.mro(value.cls) if value.cls is not None else False
            if name == "Module":
                return bool(value.nn) or self.walk.classes.is_module(value.cls)
            if value.cls is None:
                return (
                    value.nn == name
                    or (name == "_ConvNd" and value.nn.startswith("Conv"))
                    or (name.startswith("_BatchNorm") and "BatchNorm" in value.nn)
                )
            return any(b.endswith(f".{name}") for b in self.walk.classes.outside(value.cls))
        if isinstance(value, Seq):
            return name in (value.kind, "Sequence", "Iterable") if name else None
        if isinstance(value, Dict):
            return name in ("dict", "Mapping", "OrderedDict") if name else None
        return None

    def copied(self, value: Value, memo: dict[int, Value], deep: bool) -> Value:
        """copy.deepcopy of a model: the same shape, other memory."""
        if id(value) in memo or len(memo) > 400:
            return memo.get(id(value), value)
        if isinstance(value, Tensor):
            made = Tensor(
                tuple(Storage(s.name, s.kind) for s in value.storages),
                value.grad if value.param or value.leaf else NO,
            )
            made.param, made.name, made.leaf = value.param, value.name, True
            memo[id(value)] = made
            return made
        if isinstance(value, Instance):
            twin = Instance(value.cls, value.nn)
            memo[id(value)] = twin
            twin.attrs = {k: self.copied(v, memo, deep) for k, v in value.attrs.items()}
            return twin
        if isinstance(value, Seq):
            seq = Seq([], value.kind)
            memo[id(value)] = seq
            rest = self.copied(value.rest, memo, deep) if value.rest is not None else None
            self.walk.hold(seq, [self.copied(v, memo, deep) for v in value.items], rest)
            return seq
        if isinstance(value, Dict):
            made_dict = Dict({k: self.copied(v, memo, deep) for k, v in value.items.items()}, value.rest)
            memo[id(value)] = made_dict
            return made_dict
        if isinstance(value, Opaque):
            other = Opaque(value.name)
            memo[id(value)] = other
            return other
        return value


def _counters(values: Sequence[int]) -> list[Value]:
    return [Const(value, True, i == len(values) - 1) for i, value in enumerate(values)]
