"""Calls: the project's own functions and classes are walked into; attributes are found along the classes."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from gradmend.check.values import (
    MAYBE,
    NO,
    NONE,
    YES,
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
    Storage,
    Tensor,
    Value,
    unknown,
)
from gradmend.check.walk.core import Frame, merged
from gradmend.check.walk.writes import Writes

_MODULES = ("torch.nn.Module", "torch.nn.modules.module.Module", "torch.nn.modules.Module")


class Calls(Writes):
    external: Callable[..., Value]
    tensor_method: Callable[..., Value]
    tensor_attribute: Callable[..., Value]
    builtin_method: Callable[..., Value]
    module_attribute: Callable[..., Value | None]
    module_call: Callable[..., Value]
    make_module: Callable[..., Value]
    apply_function: Callable[..., Value]
    set_tensor_attribute: Callable[..., bool]

    def call(self, node: ast.Call) -> Value:
        function = self.eval(node.func)
        args, keywords = self.arguments(node)
        return self.over(self.force(function), lambda f: self.call_value(f, args, keywords, node))

    def arguments(self, node: ast.Call) -> tuple[list[Value], dict[str, Value]]:
        args: list[Value] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                inner = self.eval(argument.value)
                if isinstance(inner, Seq):
                    args += inner.items
                    if inner.rest is not None:
                        args += [inner.rest] * 6  # as many as there are parameters to take them
                elif isinstance(inner, Instance) and self.module_items(inner) is not None:
                    args += self.module_items(inner) or []
                else:
                    args += (
                        [self.element(inner)] * 2
                        if isinstance(inner, Tensor)
                        else [unknown("*") for _ in range(4)]
                    )
            else:
                args.append(self.eval(argument))
        keywords: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.eval(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, Dict):
                keywords.update({k: v for k, v in value.items.items() if isinstance(k, str)})
        return args, keywords

    def call_value(
        self, function: Value, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        function = self.force(function)
        if isinstance(function, Function):
            return self.call_function(function, args, keywords, node)
        if isinstance(function, Bound):
            return self._call_bound(function, args, keywords, node)
        if isinstance(function, Class):
            return self.instantiate(function, args, keywords, node)
        if isinstance(function, Ext):
            return self.external(function.name, args, keywords, node)
        if isinstance(function, Instance):
            return self._call_instance(function, args, keywords, node)
        if isinstance(function, Partial):
            return self.call_value(
                function.function, [*function.args, *args], {**function.keywords, **keywords}, node
            )
        if isinstance(function, Alt):
            return self.over(function, lambda f: self.call_value(f, args, keywords, node))
        if isinstance(function, Opaque) and isinstance(owner := function.attrs.get("$owner"), Opaque):
            return self.builtin_method(owner, function.name.rpartition(".")[2], args, keywords, node)
        return self.unknown_call(function, args, keywords, node)

    def _call_bound(
        self, bound: Bound, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        inner = bound.function
        if isinstance(inner, Function):
            if inner.kind == "static":
                return self.call_function(inner, args, keywords, node)
            return self.call_function(inner, [bound.owner, *args], keywords, node)
        if inner is not None:
            return self.call_value(inner, args, keywords, node)
        owner = bound.owner
        if isinstance(owner, Tensor):
            return self.tensor_method(owner, bound.name, args, keywords, node)
        if isinstance(owner, Opaque):
            return self._opaque_method(owner, bound.name, args, keywords, node)
        return self.builtin_method(owner, bound.name, args, keywords, node)

    def _opaque_method(
        self, owner: Opaque, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if self.looks_like_tensor(owner, name):
            return self.tensor_method(owner.as_tensor(), name, args, keywords, node)
        return self.builtin_method(owner, name, args, keywords, node)

    looks_like_tensor: Callable[[Opaque, str], bool]

    # --- the project's functions

    def call_function(
        self, function: Function, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        key = id(function.node)
        if len(self.frames) > self.deepest or self.active.count(key) > 1 or self.left < 200:
            return self.unknown_call(None, args, keywords, node)
        self.visited.add(key)
        env: dict[str, Value] = {}
        frame = Frame(function.module, env, function.env or ())
        frame.function, frame.cls = function, function.cls
        if not function.module.declared:
            self.declare(function.module)
        self.bind_parameters(function, args, keywords, env)
        path, statement, mode = self.path, self.statement, self.grad_mode
        if function.grad_mode is not None:
            self.grad_mode = function.grad_mode
        self.frames.append(frame)
        self.active.append(key)
        try:
            body = function.node.body
            if isinstance(body, list):
                status = self.run_block(body)
                if not status:
                    frame.returns.append((self.path, NONE))
            else:
                frame.returns.append((self.path, self.eval(body)))
        finally:
            self.frames.pop()
            self.active.pop()
            self.path, self.statement, self.grad_mode = path, statement, mode
        if frame.yields:
            return Seq(frame.yields, "generator")
        depth = len(path)
        values = [(p[depth:], v) for p, v in frame.returns]
        told = [o for o in values if not (isinstance(o[1], Const) and o[1].value is None)]
        return self.either(values) if values and told else NONE

    def bind_parameters(
        self, function: Function, args: list[Value], keywords: dict[str, Value], env: dict[str, Value]
    ) -> None:
        spec: ast.arguments = function.node.args
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        env.update(zip(names, args, strict=False))
        left = dict(keywords)
        for name in (*names[len(args) :], *(a.arg for a in spec.kwonlyargs)):
            if name in left:
                env[name] = left.pop(name)
        defaults = list(zip(names[len(names) - len(spec.defaults) :], spec.defaults, strict=True))
        defaults += [
            (a.arg, d) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None
        ]
        for name, default in defaults:
            if name not in env:
                env[name] = self._default(function, default)
        for name in (*names, *(a.arg for a in spec.kwonlyargs)):
            if name not in env:
                env[name] = unknown(name)
        if spec.vararg is not None:
            env[spec.vararg.arg] = Seq(list(args[len(names) :]), "tuple")
        if spec.kwarg is not None:
            env[spec.kwarg.arg] = Dict(dict(left))

    def _default(self, function: Function, default: ast.expr) -> Value:
        if isinstance(default, ast.Constant):
            return NONE if default.value is None else Const(default.value)
        self.frames.append(Frame(function.module, function.module.env))
        try:
            return self.eval(default)
        finally:
            self.frames.pop()

    def unknown_call(
        self, function: Value | None, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """Somebody else's code: its result may depend on every tensor it was given."""
        found = [pair for value in (*args, *keywords.values()) for pair in self.tensors(value)]
        known = [pair for pair in found if not (pair[1].opaque and pair[1].node is None)]
        owner = function if isinstance(function, Opaque) else None
        if not known and owner is None:
            return unknown()
        result = self.fresh(node)
        result.opaque = True
        result.storages[0].kind = "opaque"
        if self.grad_mode is not False:
            parts = list(known)
            if owner is not None and found:
                parts.append(((), self.parameters_of_opaque(owner)))
            if not parts:
                return unknown()
            made = self.record("call", parts, node)
            made.keeps, made.sure = True, False
            result.node, result.leaf, result.grad = made, False, MAYBE
            if owner is not None and found:
                weights = self.parameters_of_opaque(owner)
                self.save((), weights, made, node, owner.name or "the model", "weight", False)
        return result

    def parameters_of_opaque(self, owner: Opaque) -> Tensor:
        there = owner.attrs.get("$parameters")
        if not isinstance(there, Tensor):
            there = Tensor((Storage(f"{owner.name}.parameters()", "param"),), MAYBE)
            there.name, there.param = f"{owner.name}'s parameters", True
            self.models.append(owner)
            owner.attrs["$parameters"] = there
        return there

    # --- classes

    def instantiate(self, cls: Class, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        outside = self.outside(cls)
        made = Instance(cls)
        made.site = self.at(node)
        if "torch.autograd.Function" in outside or "torch.autograd.function.Function" in outside:
            made.nn = "function"
        method = self.find(cls, "__init__")
        if isinstance(method, Function):
            self.call_function(method, [made, *args], keywords, node)
        elif cls.dataclass:
            self._fill_fields(made, cls, args, keywords)
        else:
            base = next((n for n in outside if n.startswith("torch.")), None)
            if base is not None:
                self.make_module(base, args, keywords, node, made)
            elif any(n.endswith("NamedTuple") for n in outside):
                self._fill_fields(made, cls, args, keywords)
        if self.is_optimizer(cls):
            made.nn = "optim"
            params = args[0] if args else keywords.get("params", unknown())
            made.attrs.setdefault("$params", Seq([t for _, t in self.tensors(params)]))
        return made

    def is_optimizer(self, cls: Class) -> bool:
        return any(n.startswith("torch.optim") for n in self.outside(cls))

    def _fill_fields(self, made: Instance, cls: Class, args: list[Value], keywords: dict[str, Value]) -> None:
        fields = [s for s in cls.node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]
        for i, statement in enumerate(fields):
            name = statement.target.id  # type: ignore[union-attr]
            if i < len(args):
                made.attrs[name] = args[i]
            elif name in keywords:
                made.attrs[name] = keywords[name]
            elif isinstance(statement.value, ast.Constant):
                made.attrs[name] = Const(statement.value.value)
            elif isinstance(statement.value, ast.Call):
                factory = next(
                    (k.value for k in statement.value.keywords if k.arg == "default_factory"), None
                )
                what = getattr(factory, "id", "")
                made.attrs[name] = (
                    Seq([]) if what == "list" else Dict({}) if what == "dict" else unknown(name)
                )

    def mro(self, cls: Class, deep: int = 0) -> list[Class]:
        found = [cls]
        if deep < 12:
            for base in cls.bases:
                base = self.force(base)
                if isinstance(base, Class):
                    found += [c for c in self.mro(base, deep + 1) if c not in found]
        return found

    def outside(self, cls: Class) -> list[str]:
        """The dotted names of all bases that are not the project's."""
        found: list[str] = []
        for each in self.mro(cls):
            for base in each.bases:
                base = self.force(base)
                if isinstance(base, Ext):
                    found.append(_canonical(base.name))
                elif isinstance(base, Opaque):
                    found.append(f"?{base.name}")
        return found

    def is_module(self, cls: Class | None) -> bool:
        if cls is None:
            return False
        outside = self.outside(cls)
        if any(n in _MODULES or n.startswith("torch.nn.") for n in outside):
            return True
        # A base that is not seen: what has forward() is taken for a module.
        return (
            bool(outside)
            and self.find(cls, "forward") is not None
            and "torch.autograd.Function" not in outside
        )

    def find(self, cls: Class, name: str, after: Class | None = None) -> Value | None:
        classes = self.mro(cls)
        if after is not None and after in classes:
            classes = classes[classes.index(after) + 1 :]
        for each in classes:
            if name in each.attrs:
                value = each.attrs[name]
                if isinstance(value, Lazy):
                    value = each.attrs[name] = self.resolve(
                        Lazy(value.module, f"{each.name}.{name}", value.node)
                    )
                return value
        return None

    def method_of(self, owner: Instance, name: str) -> Value | None:
        if owner.cls is None:
            return None
        found = self.find(owner.cls, name)
        return Bound(owner, name, found) if isinstance(found, Function) else None

    def _call_instance(
        self, owner: Instance, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        result = self._forward(owner, args, keywords, node)
        hooks = owner.attrs.get("$hooks")
        for hook in hooks.items if isinstance(hooks, Seq) else ():
            changed = self.call_value(hook, [owner, Seq(list(args), "tuple"), result], {}, node)
            if not (isinstance(changed, Const) and changed.value is None) and not isinstance(changed, Opaque):
                result = changed
        return result

    def _forward(
        self, owner: Instance, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if owner.cls is not None:
            for name in ("__call__", "forward"):
                method = self.find(owner.cls, name)
                if isinstance(method, Function):
                    return self.call_function(method, [owner, *args], keywords, node)
        return self.module_call(owner, args, keywords, node)

    # --- attributes

    def attribute(self, owner: Value, name: str, node: ast.AST) -> Value:
        owner = self.force(owner)
        if isinstance(owner, Tensor):
            return self.tensor_attribute(owner, name, node)
        if isinstance(owner, Ext):
            return Ext(f"{owner.name}.{name}")
        if isinstance(owner, Instance):
            return self._instance_attribute(owner, name, node)
        if isinstance(owner, ModuleValue):
            self.declare(owner.module)
            there = owner.module.env.get(name)
            if there is None:
                return self.resolve(Lazy(owner.module, name))
            return self.force(there)
        if isinstance(owner, Class):
            found = self.find(owner, name)
            if isinstance(found, Function):
                return Bound(owner, name, found) if found.kind == "class" else found
            if found is not None:
                return found
            if name == "apply" and any(
                n.endswith(("autograd.Function", "function.Function")) for n in self.outside(owner)
            ):
                return Bound(owner, "apply")
            return unknown(name)
        if isinstance(owner, Alt):
            return self.over(owner, lambda v: self.attribute(v, name, node))
        if isinstance(owner, Opaque):
            if name in owner.attrs:
                return owner.attrs[name]
            if isinstance(self.parent_call, ast.Attribute):
                pass
            if self.looks_like_tensor(owner, name) and not _may_be_data(name):
                return Bound(owner, name)
            if name in ("data", "grad", "T", "mT", "H", "real", "imag") and owner.tensor is not None:
                return self.tensor_attribute(owner.tensor, name, node)
            made = owner.attrs[name] = Opaque(f"{owner.name}.{name}" if owner.name else name)
            made.attrs["$owner"] = owner
            return made
        return Bound(owner, name)

    parent_call: Any = None

    def _instance_attribute(self, owner: Instance, name: str, node: ast.AST) -> Value:
        value = owner.attrs.get(name)
        if value is not None:
            value = self.force(value)
            if isinstance(value, Alt):
                options = self.options(value)
                if len(options) == 1:
                    return options[0][1]
            return value
        if owner.nn == "super":
            return self._super_attribute(owner, name)
        if owner.cls is not None:
            found = self.find(owner.cls, name)
            if isinstance(found, Function):
                if found.kind == "property":
                    return self.call_function(found, [owner], {}, node)
                if found.kind == "class":
                    return Bound(owner.cls, name, found)
                return Bound(owner, name, found)
            if found is not None:
                return found
        made = self.module_attribute(owner, name, node)
        if made is not None:
            return made
        if owner.cls is not None and not owner.nn:
            getter = self.find(owner.cls, "__getattr__")
            if isinstance(getter, Function):
                return self.call_function(getter, [owner, Const(name)], {}, node)
        made = unknown(name)
        owner.attrs[name] = made
        return made

    def _super_attribute(self, owner: Instance, name: str) -> Value:
        me, after = owner.attrs.get("$self"), owner.cls
        target = me.cls if isinstance(me, Instance) else me if isinstance(me, Class) else None
        if isinstance(target, Class) and after is not None:
            found = self.find(target, name, after)
            if isinstance(found, Function):
                return found if found.kind == "static" else Bound(me or NONE, name, found)
            if isinstance(me, Instance):
                base = next((n for n in self.outside(after) if n.startswith("torch.")), "")
                return Bound(
                    Instance(None, "superbase"),
                    name,
                    Partial(Ext("gradmend.super"), [me, Const(base), Const(name)], {}),
                )
        return unknown(name)

    def set_attribute(self, owner: Value, name: str, value: Value, node: ast.AST) -> None:
        for path, option in self.options(owner):
            with self.on(path):
                if isinstance(option, Tensor):
                    self.set_tensor_attribute(option, name, value, node)
                elif isinstance(option, Instance):
                    if option.nn == "ctx" and self.tensors(value):
                        self.hang_on_ctx(option, name, value, node)
                    if isinstance(value, Tensor) and not value.name:
                        value.name = name
                    if option.cls is not None:
                        found = self.find(option.cls, name)
                        if isinstance(found, Function) and found.kind == "property":
                            continue
                    self.store(option.attrs, name, value)
                elif isinstance(option, Opaque):
                    if name == "data" and option.tensor is not None:
                        self.set_tensor_attribute(option.tensor, name, value, node)
                    else:
                        self.store(option.attrs, name, value)
                elif isinstance(option, Class):
                    self.store(option.attrs, name, value)
                elif isinstance(option, ModuleValue):
                    self.store(option.module.env, name, value)

    hang_on_ctx: Callable[..., None]

    def make_super(self, args: list[Value]) -> Value:
        frame = self.frame
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


def _canonical(name: str) -> str:
    return name.replace("torch.nn.modules.module.", "torch.nn.").replace(
        "torch.autograd.function.", "torch.autograd."
    )


def _may_be_data(name: str) -> bool:
    return name in ("data", "grad", "T", "shape", "dtype", "device")


__all__ = ["NO", "YES", "Calls", "Path", "merged"]
