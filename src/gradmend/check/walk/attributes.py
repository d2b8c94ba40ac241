"""Attributes, found along the classes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradmend.check.values import (
    NONE,
    Alt,
    Bound,
    Class,
    Const,
    Ext,
    Function,
    Instance,
    Lazy,
    ModuleValue,
    Opaque,
    Partial,
    Seq,
    Tensor,
    Value,
    unknown,
)

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker


class Attributes:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def attribute(self, owner: Value, name: str, node: ast.AST) -> Value:
        owner = self.walk.force(owner)
        if isinstance(owner, Tensor):
            return self.walk.tensor_methods.tensor_attribute(owner, name, node)
        if isinstance(owner, Ext):
            return Ext(f"{owner.name}.{name}")
        if isinstance(owner, Instance):
            return self._instance_attribute(owner, name, node)
        if isinstance(owner, ModuleValue):
            self.walk.definitions.declare(owner.module)
            there = owner.module.env.get(name)
            if there is None:
                return self.walk.names.resolve(Lazy(owner.module, name))
            return self.walk.force(there)
        if isinstance(owner, Class):
            found = self.walk.classes.find(owner, name)
            if isinstance(found, Function):
                return Bound(owner, name, found) if found.kind == "class" else found
            if found is not None:
                return found
            if name == "apply" and any(
                n.endswith(("autograd.Function", "function.Function"))
                for n in self.walk.classes.outside(owner)
            ):
                return Bound(owner, "apply")
            return unknown(name)
        if isinstance(owner, Alt):
            return self.walk.over(owner, lambda v: self.attribute(v, name, node))
        if isinstance(owner, Opaque):
            if name in owner.attrs:
                return owner.attrs[name]
            if self.walk.tensor_methods.looks_like_tensor(owner, name) and not _may_be_data(name):
                return Bound(owner, name)
            if name in ("data", "grad", "T", "mT", "H", "real", "imag") and owner.tensor is not None:
                return self.walk.tensor_methods.tensor_attribute(owner.tensor, name, node)
            made = owner.attrs[name] = Opaque(f"{owner.name}.{name}" if owner.name else name, owner.data)
            made.attrs["$owner"] = owner
            return made
        if isinstance(owner, Seq) and name in ("values", "indices") and len(owner.items) == 2:
            return owner.items[name == "indices"]  # of max(1), sort(), topk(), ...
        return Bound(owner, name)

    def _instance_attribute(self, owner: Instance, name: str, node: ast.AST) -> Value:
        value = owner.attrs.get(name)
        if value is not None:
            value = self.walk.force(value)
            if self.walk.recomputed is not None:
                self.walk.cells.read(owner.attrs, name, value)
            if isinstance(value, Alt):
                options = self.walk.options(value)
                if len(options) == 1 and self.walk.present(value):
                    return options[0][1]
            return value
        if owner.nn == "super":
            return self._super_attribute(owner, name)
        if owner.cls is not None:
            found = self.walk.classes.find(owner.cls, name)
            if isinstance(found, Function):
                if found.kind == "property":
                    return self.walk.calls.call_function(found, [owner], {}, node)
                if found.kind == "class":
                    return Bound(owner.cls, name, found)
                return Bound(owner, name, found)
            if found is not None:
                return found
        made = self.walk.module_methods.module_attribute(owner, name, node)
        if made is not None:
            return made
        if owner.cls is not None and not owner.nn:
            getter = self.walk.classes.find(owner.cls, "__getattr__")
            if isinstance(getter, Function):
                return self.walk.calls.call_function(getter, [owner, Const(name)], {}, node)
        made = unknown(name)
        owner.attrs[name] = made
        return made

    def _super_attribute(self, owner: Instance, name: str) -> Value:
        me, after = owner.attrs.get("$self"), owner.cls
        target = me.cls if isinstance(me, Instance) else me if isinstance(me, Class) else None
        if isinstance(target, Class) and after is not None:
            found = self.walk.classes.find(target, name, after)
            if isinstance(found, Function):
                return found if found.kind == "static" else Bound(me or NONE, name, found)
            if isinstance(me, Instance):
                base = next((n for n in self.walk.classes.outside(after) if n.startswith("torch.")), "")
                return Bound(
                    Instance(None, "superbase"),
                    name,
                    Partial(Ext("gradmend.super"), [me, Const(base), Const(name)], {}),
                )
        return unknown(name)

    def set_attribute(self, owner: Value, name: str, value: Value, node: ast.AST) -> None:
        for path, option in self.walk.options(owner):
            with self.walk.on(path):
                if isinstance(option, Tensor):
                    self.walk.tensor_methods.set_tensor_attribute(option, name, value, node)
                elif isinstance(option, Instance):
                    if option.nn == "ctx" and self.walk.tensors_in(value):
                        self.walk.functions.hang_on_ctx(option, name, value, node)
                    if isinstance(value, Tensor) and not value.name:
                        value.name = name
                    if option.cls is not None:
                        found = self.walk.classes.find(option.cls, name)
                        if isinstance(found, Function) and found.kind == "property":
                            continue
                    self.walk.cells.bound(option.attrs, name, value)
                    self.walk.store(option.attrs, name, value)
                elif isinstance(option, Opaque):
                    if name == "data" and option.tensor is not None:
                        self.walk.tensor_methods.set_tensor_attribute(option.tensor, name, value, node)
                    else:
                        self.walk.store(option.attrs, name, value)
                elif isinstance(option, Class):
                    self.walk.store(option.attrs, name, value)
                elif isinstance(option, ModuleValue):
                    self.walk.store(option.module.env, name, value)

    def make_super(self, args: list[Value]) -> Value:
        frame = self.walk.frame
        cls = frame.cls
        me: Value | None = None
        if frame.function is not None and frame.function.node.args.args:
            me = frame.env.get(frame.function.node.args.args[0].arg)
        if args and isinstance(args[0], Class):
            cls = args[0]
        if len(args) > 1:
            me = args[1]
        made = Instance(cls, "super")
        if me is not None:
            made.attrs["$self"] = me
        return made


def _may_be_data(name: str) -> bool:
    return name in ("data", "grad", "T", "shape", "dtype", "device")
