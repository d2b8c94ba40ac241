"""What a loop over a value binds, and what unpacking gives."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradmend.check.values import (
    NO,
    Alt,
    Const,
    Dict,
    Instance,
    Opaque,
    Path,
    Seq,
    Storage,
    Tensor,
    Value,
    unknown,
)
from gradmend.check.walk.paths import joined

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker


class Iteration:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def any_of(self, items: list[Value]) -> Value:
        """One of these, nobody knows which."""
        if not items:
            return unknown()
        if len(items) == 1:
            return items[0]
        tag = self.walk.ledger.now()
        return self.walk.either([(((("item", tag, i), True),), item) for i, item in enumerate(items[:4])])

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
            for path, option in self.walk.options(value):
                if isinstance(option, Const):
                    continue
                for i, part in enumerate(self.split(option, n)):
                    columns[i].append((path, part))
            return [self.walk.either(c) if c else unknown() for c in columns]
        if isinstance(value, Tensor):
            if value.opaque and value.node is not None:
                return [self.sibling(value) for _ in range(n)]
            return [self.walk.tensors.rows(value) for _ in range(n)]
        if isinstance(value, Opaque):
            return [value.part(f"[{i}]", f"{value.name}[{i}]") for i in range(n)]
        if isinstance(value, Instance):
            parts = self.iterate(value, None)
            return [parts[i] if i < len(parts) else unknown() for i in range(n)]
        return [unknown() for _ in range(n)]

    def sibling(self, value: Tensor) -> Tensor:
        """Another result of the same call: its own memory, the same history."""

        made = Tensor((Storage(kind=value.storages[0].kind),), value.grad, value.node)
        made.opaque, made.leaf = value.opaque, False
        return made

    def iterate(self, value: Value, node: ast.expr | None) -> list[Value]:
        """What a loop over it would bind, a few of them."""
        if isinstance(value, Seq):
            items = list(value.items)
            return items + [value.rest] * max(1, 2 - len(items)) if value.rest is not None else items
        if isinstance(value, Alt):
            found = [
                (p, self.iterate(v, node)) for p, v in self.walk.options(value) if not isinstance(v, Const)
            ]
            return joined(found, self.walk.either) if found else []
        if isinstance(value, Tensor):
            if value.opaque and value.node is None:
                data = value.grad == NO
                return [Opaque("", data), Opaque("", data)]
            return [self.walk.tensors.rows(value), self.walk.tensors.rows(value)]
        if isinstance(value, Dict):
            keys: list[Value] = [Const(k) for k in value.items]
            return keys if value.rest is None else [*keys, unknown()]
        if isinstance(value, Instance):
            generator = self.walk.generators.behind(value, node or ast.Constant(None))
            if generator is not None:
                taken: list[Value] = []
                self.walk.generators.run(generator, node or ast.Constant(None), taken.append)
                return taken
            if value.nn == "loader":
                return [Opaque("batch", True), Opaque("batch", True)]
            held = self.walk.modules.module_items(value)
            if held is not None:
                return list(held)
            method = self.walk.classes.method_of(value, "__iter__")
            if method is not None:
                inner = self.walk.calls.call_value(method, [], {}, node or ast.Constant(None))
                if inner is not value and not isinstance(inner, Instance):
                    return self.iterate(inner, node)
            getter = self.walk.classes.method_of(value, "__getitem__")
            if getter is not None:
                return [
                    self.walk.calls.call_value(getter, [Const(i, True)], {}, node or ast.Constant(None))
                    for i in range(2)
                ]
            return [unknown(), unknown()]
        if isinstance(value, Opaque):
            data = value.data or "loader" in value.name.lower()
            return [Opaque("batch" if data else "", data), Opaque("batch" if data else "", data)]
        if isinstance(value, Const):
            return [Const(c) for c in value.value[:2]] if isinstance(value.value, str) else []
        return [unknown(), unknown()]
