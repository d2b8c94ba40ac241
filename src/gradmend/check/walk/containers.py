"""Lists, tuples and dictionaries: how they are made, and what an index gives."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gradmend.check.values import NONE, Alt, Const, Dict, Ext, Instance, Opaque, Seq, Tensor, Value, unknown

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker


class Containers:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def table(self) -> dict[type, Callable[[Any], Value]]:
        """Which of these takes which kind of syntax."""
        return {
            ast.List: self._list,
            ast.Tuple: self._list,
            ast.Set: self._list,
            ast.Dict: self._dict,
            ast.ListComp: self._comprehension,
            ast.SetComp: self._comprehension,
            ast.GeneratorExp: self._comprehension,
            ast.DictComp: self._comprehension,
            ast.Subscript: self._subscript,
        }

    def _list(self, node: Any) -> Value:
        items: list[Value] = []
        rest: Value | None = None
        for element in node.elts:
            if isinstance(element, ast.Starred):
                inner = self.walk.eval(element.value)
                items += self.walk.iteration.iterate(inner, element.value)
                if isinstance(inner, Seq) and inner.rest is not None:
                    rest = inner.rest
            else:
                value = self.walk.eval(element)
                self.walk.statements.share(value)
                items.append(value)
        return Seq(items, "tuple" if isinstance(node, ast.Tuple) else "list", rest)

    def _dict(self, node: ast.Dict) -> Value:
        made = Dict({})
        for key, value in zip(node.keys, node.values, strict=True):
            got = self.walk.eval(value)
            self.walk.statements.share(got)
            if key is None:
                if isinstance(got, Dict):
                    made.items.update(got.items)
                    made.rest = made.rest or got.rest
                continue
            name = self.walk.eval(key)
            if isinstance(name, Const) and _hashable(name.value):
                made.items[name.value] = got
            else:
                made.rest = got
        return made

    def _comprehension(self, node: Any) -> Value:
        found: list[Value] = []
        keys: list[Value] = []
        more: list[Value] = []  # sources of unknown length
        before = self.walk.path
        saved: dict[str, Value | None] = {}
        env = self.walk.frame.env

        def level(i: int) -> None:
            if i == len(node.generators):
                if isinstance(node, ast.DictComp):
                    keys.append(self.walk.eval(node.key))
                    found.append(self.walk.eval(node.value))
                else:
                    found.append(self.walk.eval(node.elt))
                return
            generator = node.generators[i]
            source = self.walk.eval(generator.iter)

            def each(item: Value) -> None:
                for name in ast.walk(generator.target):
                    if isinstance(name, ast.Name) and name.id not in saved:
                        saved[name.id] = env.get(name.id)
                self.walk.statements.bind(generator.target, item)
                skip = False
                for test in generator.ifs:
                    known = self.walk.questions.truth(test)
                    skip = skip or known is False
                if not skip:
                    level(i + 1)
                self.walk.path = before

            lazy = self.walk.generators.behind(source, generator.iter)
            if lazy is not None:
                self.walk.generators.run(lazy, generator.iter, each)
                return
            items = self.walk.iteration.iterate(source, generator.iter)
            if isinstance(source, Seq) and source.rest is not None:
                more.append(source)
            every = isinstance(source, Seq) and source.kind == "modules"
            few = i == 0 and (len(items) <= 8 or every)
            for item in items if few else items[:2]:
                each(item)

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

    def _subscript(self, node: ast.Subscript) -> Value:
        owner = self.walk.eval(node.value)
        return self.walk.over(owner, lambda v: self.item(v, node))

    def item(self, owner: Value, node: ast.Subscript) -> Value:
        if isinstance(owner, Ext):
            return owner  # Optional[int], list[int]
        at = node.slice
        if isinstance(owner, Seq):
            if isinstance(at, ast.Slice):
                return self._slice(owner, at)
            return self.nth(owner, self.walk.eval(at))
        if isinstance(owner, Dict):
            key = self.walk.eval(at)
            if isinstance(key, Const) and _hashable(key.value):
                if key.value in owner.items:
                    return owner.items[key.value]
                if not key.soft:
                    made = owner.rest or unknown(str(key.value))
                    owner.items[key.value] = made
                    return made
            return owner.rest or (
                self.walk.iteration.any_of(list(owner.items.values())) if owner.items else unknown()
            )
        if isinstance(owner, Tensor) or (isinstance(owner, Opaque) and _array_index(at)):
            return self.walk.tensors.index(owner, at, node)
        if isinstance(owner, Instance):
            return self._instance_item(owner, at, node)
        key = self.walk.eval(at)
        if isinstance(owner, Opaque):
            name = f"[{key.value!r}]" if isinstance(key, Const) and not key.soft else "[]"
            if name == "[]":
                return Opaque("", owner.data)
            return owner.part(name, f"{owner.name}{name}")
        return unknown()

    def _instance_item(self, owner: Instance, at: ast.expr, node: ast.Subscript) -> Value:
        if owner.nn == "ndarray":
            self.walk.eval(at)
            # Basic slices share memory; which they are is not worth knowing.
            return owner
        items = self.walk.modules.module_items(owner)
        if items is not None:
            if isinstance(at, ast.Slice):
                made = Instance(None, owner.nn)
                made.attrs["items"] = self._slice(Seq(items), at)
                return made
            return self.nth(Seq(items), self.walk.eval(at))
        method = self.walk.classes.method_of(owner, "__getitem__")
        key = self.walk.eval(at)
        if method is not None:
            return self.walk.calls.call_value(method, [key], {}, node)
        if owner.nn == "optim":
            return unknown()
        name = f"[{key.value!r}]" if isinstance(key, Const) else "[]"
        return owner.attrs.setdefault(name, unknown(name))

    def nth(self, owner: Seq, key: Value) -> Value:
        if isinstance(key, Const) and isinstance(key.value, int):
            n = key.value
            if -len(owner.items) <= n < len(owner.items) and (n >= 0 or owner.rest is None):
                return (
                    owner.items[n] if n >= 0 else self._from_the_end(owner.items[: len(owner.items) + n + 1])
                )
            if owner.rest is not None:
                return owner.rest
        return self.walk.iteration.element(owner)

    def _from_the_end(self, items: list[Value]) -> Value:
        """The last of these: where it is missing, the one before it."""
        last = items[-1]
        if len(items) == 1 or self.walk.present(last):
            return last
        assert isinstance(last, Alt)
        before = self._from_the_end(items[:-1])
        return self.walk.either([*last.options, *((path, before) for path in last.missing)])

    def _slice(self, owner: Seq, at: ast.Slice) -> Seq:
        bounds = [self.walk.eval(b) if b is not None else NONE for b in (at.lower, at.upper, at.step)]
        if (
            all(isinstance(b, Const) and (b.value is None or isinstance(b.value, int)) for b in bounds)
            and owner.rest is None
        ):
            try:
                return Seq(owner.items[slice(*(b.value for b in bounds))], owner.kind)  # type: ignore[attr-defined]
            except ValueError:
                pass
        return Seq(list(owner.items), owner.kind, owner.rest)


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
