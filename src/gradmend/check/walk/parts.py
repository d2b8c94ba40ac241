"""Assignments to parts: `x[i] = v`, `x += v`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from gradmend.check import words
from gradmend.check.values import Const, Dict, Instance, Number, Opaque, Seq, Tensor, Value
from gradmend.check.walk.layouts import overlap_in_part
from gradmend.check.walk.operators import BINARY, SYMBOL
from gradmend.check.walk.targets import target_name

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker


class Parts:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def augment(self, node: ast.AugAssign) -> None:
        value = self.walk.eval(node.value)
        target = node.target
        self.shifted(target, node.value, value, node)
        kind = type(node.op)
        if isinstance(target, ast.Subscript):
            owner = self.walk.eval(target.value)
            for path, option in self.walk.options(owner):
                with self.walk.on(path):
                    self._augment_item(option, target, kind, value, node)
            return
        load: Any = target
        current = self.walk.eval(_loaded(load))
        for path, option in self.walk.options(current):
            with self.walk.on(path):
                new = self._augmented(option, kind, value, node)
                if new is not option:
                    self.walk.statements.bind(target, new)

    def _augment_item(
        self, owner: Value, target: ast.Subscript, kind: type, value: Value, node: ast.AugAssign
    ) -> None:
        if isinstance(owner, Tensor) or (isinstance(owner, Opaque) and owner.tensor is not None):
            _, where = self.walk.tensors.index_kind(target.slice)
            tensor = owner.as_tensor() if isinstance(owner, Opaque) else owner
            # y[i] op= v reads and writes y's own memory, whatever the index is.
            if where:
                self.walk.writes.write(
                    tensor,
                    "index_put_",
                    node,
                    {"indices": Seq(where), "values": value},
                    shown=SYMBOL.get(kind, "+="),
                    part=True,
                )
            else:
                basic = self.walk.tensors.look(tensor, target, "select")
                self.walk.writes.write(
                    basic,
                    BINARY.get(kind, "add") + "_",
                    node,
                    {"other": value},
                    shown=SYMBOL.get(kind, "+="),
                    part=True,
                )
            return
        if isinstance(owner, Instance) and owner.nn == "ndarray":
            self.walk.writes.write(
                owner.attrs["memory"],
                "setitem",
                node,
                shown=SYMBOL.get(kind, "+="),
                name=target_name(target.value) or "",
            )
            return
        current = self.walk.containers.item(owner, target)
        for path, option in self.walk.options(current):
            with self.walk.on(path):
                new = self._augmented(option, kind, value, node)
                if new is not option:
                    self.set_item(target, new)

    def _augmented(self, current: Value, kind: type, value: Value, node: ast.AugAssign) -> Value:
        """What `current op= value` leaves behind: the same tensor, written, or a new value."""
        if isinstance(current, Tensor) and kind is not ast.MatMult and not current.guessed:
            self.walk.writes.write(
                current, BINARY.get(kind, "add") + "_", node, {"other": value}, shown=SYMBOL.get(kind, "+=")
            )
            return current
        if isinstance(current, Opaque):
            if kind is not ast.MatMult and current.tensor is not None and not current.tensor.guessed:
                self.walk.writes.write(
                    current,
                    BINARY.get(kind, "add") + "_",
                    node,
                    {"other": value},
                    shown=SYMBOL.get(kind, "+="),
                )
                return current
            if isinstance(value, Tensor) and not value.opaque:
                return self.walk.tensors.apply(
                    BINARY.get(kind, "add"), node, {"self": current, "other": value}
                )
            return current
        if isinstance(current, Seq):
            if kind is ast.Add:
                # The list itself grows: whoever holds it sees it.
                self.walk.hold(
                    current, [*current.items, *self.walk.iteration.iterate(value, node.value)[:16]]
                )
            return current
        if isinstance(current, Instance) and current.nn == "ndarray":
            self.walk.writes.write(
                current.attrs["memory"],
                "setitem",
                node,
                shown=SYMBOL.get(kind, "+="),
                name=target_name(node.target) or "",
            )
            return current
        if isinstance(current, Const) and isinstance(value, Const):
            if kind is ast.Add and type(current.value) is type(value.value) is int:
                return Const(current.value + value.value, True)  # a counter: of a loop's rounds, mostly
            return Number()
        return self.walk.tensors.apply(BINARY.get(kind, "add"), node, {"self": current, "other": value})

    def shifted(self, target: ast.expr, read: ast.expr, value: Value, site: ast.AST) -> None:
        """x[1:] = x[:-1]: what is read is partly what is written."""
        if not overlap_in_part(target, read) or not isinstance(value, Tensor) or value.opaque or value.quiet:
            return
        what = "this writes where it reads: which of the old elements it copies depends on the order, and PyTorch refuses it"
        self.walk.told(words.refused("GM129", self.walk.at(site), what, "warning"))

    def set_item(self, target: ast.Subscript, value: Value) -> None:
        owner = self.walk.eval(target.value)
        for path, option in self.walk.options(owner):
            with self.walk.on(path):
                self._set_item(option, target, value)

    def _set_item(self, owner: Value, target: ast.Subscript, value: Value) -> None:
        if (
            isinstance(owner, Tensor)
            and isinstance(value, Const)
            and (value.value is None or isinstance(value.value, str))
        ):
            return  # no tensor takes that: it is a container on this path
        if isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str):
            if isinstance(owner, Opaque):
                self.walk.store(owner.attrs, f"[{target.slice.value!r}]", value)
            if isinstance(owner, (Tensor, Opaque)):
                return  # a key: it is a dictionary
        self.walk.sparse.assigned(owner, self.walk.statement or target)
        site = self.walk.statement if isinstance(self.walk.statement, (ast.Assign, ast.AugAssign)) else target
        if isinstance(owner, Tensor) or (
            isinstance(owner, Opaque) and (owner.tensor is not None or _array_like(target.slice))
        ):
            tensor = owner.as_tensor() if isinstance(owner, Opaque) else owner
            basic, where = self.walk.tensors.index_kind(target.slice)
            slots: dict[str, Value] = {"src": value}
            if where:
                slots["indices"] = Seq(where)
            name = target_name(target.value) or tensor.name
            self.walk.writes.write(
                tensor,
                "setitem" if basic else "index_put_",
                site,
                slots,
                shown="assignment to a part",
                part=True,
                name=name,
            )
            return
        if isinstance(owner, Instance) and owner.nn == "ndarray":
            self.walk.eval(target.slice) if not isinstance(target.slice, ast.Slice) else None
            self.walk.writes.write(
                owner.attrs["memory"],
                "setitem",
                site,
                shown="the assignment",
                name=target_name(target.value) or "",
            )
            return
        key = self.walk.eval(target.slice) if not isinstance(target.slice, ast.Slice) else None
        if isinstance(owner, Dict):
            if isinstance(key, Const) and isinstance(key.value, (str, int, float, bool, tuple)):
                self.walk.store(owner.items, key.value, value)
            else:
                self._somewhere(owner, value)
        elif isinstance(owner, Seq):
            if (
                isinstance(key, Const)
                and isinstance(key.value, int)
                and -len(owner.items) <= key.value < len(owner.items)
            ):
                items = list(owner.items)
                items[key.value] = value
                self.walk.hold(owner, items)
            else:
                self._somewhere(owner, value)
        elif isinstance(owner, Instance):
            method = self.walk.classes.method_of(owner, "__setitem__")
            if method is not None and key is not None:
                self.walk.calls.call_value(method, [key, value], {}, target)
            elif isinstance(key, Const):
                self.walk.store(owner.attrs, f"[{key.value!r}]", value)
        elif isinstance(owner, Opaque) and isinstance(key, Const):
            self.walk.store(owner.attrs, f"[{key.value!r}]", value)

    def _somewhere(self, owner: Dict | Seq, value: Value) -> None:
        """Put where nobody knows: on one arm of a branch only, what was there before may be found as well."""
        if self.walk.journals and owner.rest is not None and owner.rest is not value:
            value = self.walk.iteration.any_of([value, owner.rest])
        if isinstance(owner, Seq):
            self.walk.hold(owner, owner.items, value)
        else:
            owner.rest = value


def _array_like(at: ast.expr) -> bool:
    parts = at.elts if isinstance(at, ast.Tuple) else [at]
    return (
        len(parts) != 1  # x[()] too
        or isinstance(parts[0], (ast.Slice, ast.Compare))
        or (isinstance(parts[0], ast.Constant) and parts[0].value is Ellipsis)
    )


def _loaded(target: Any) -> ast.expr:
    """The target of `x += 1`, to be read."""
    return target  # names and attributes are read alike, whatever their context says
