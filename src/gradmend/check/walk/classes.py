"""Classes of the project and their objects."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradmend.check.values import (
    Bound,
    Class,
    Const,
    Dict,
    Ext,
    Function,
    Instance,
    Lazy,
    Opaque,
    Seq,
    Tensor,
    Value,
    unknown,
)

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker

_MODULES = ("torch.nn.Module", "torch.nn.modules.module.Module", "torch.nn.modules.Module")


class Classes:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def instantiate(self, cls: Class, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        outside = self.outside(cls)
        made = Instance(cls)
        made.site = self.walk.at(node)
        if "torch.autograd.Function" in outside or "torch.autograd.function.Function" in outside:
            made.nn = "function"
        if self.is_optimizer(cls):
            made.nn = "optim"
            self.walk.optim.hold(made, args[0] if args else keywords.get("params", unknown()), keywords)
        method = self.find(cls, "__init__")
        if isinstance(method, Function):
            self.walk.calls.call_function(method, [made, *args], keywords, node)
        elif cls.dataclass:
            self._fill_fields(made, cls, args, keywords)
        else:
            base = next((n for n in outside if n.startswith("torch.")), None)
            if base is not None:
                self.walk.modules.make_module(base, args, keywords, node, made)
            elif any(n.endswith("NamedTuple") for n in outside):
                self._fill_fields(made, cls, args, keywords)
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
                base = self.walk.force(base)
                if isinstance(base, Class):
                    found += [c for c in self.mro(base, deep + 1) if c not in found]
        return found

    def outside(self, cls: Class) -> list[str]:
        """The dotted names of all bases that are not the project's."""
        found: list[str] = []
        for each in self.mro(cls):
            for base in each.bases:
                base = self.walk.force(base)
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
                    value = each.attrs[name] = self.walk.names.resolve(
                        Lazy(value.module, f"{each.name}.{name}", value.node)
                    )
                return value
        return None

    def method_of(self, owner: Instance, name: str) -> Value | None:
        if owner.cls is None:
            return None
        found = self.find(owner.cls, name)
        return Bound(owner, name, found) if isinstance(found, Function) else None

    def call_instance(
        self, owner: Instance, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        args = self._prepared(owner, args, node)
        hooked = "$backward_hooks" in owner.attrs and self.walk.grad_mode is not False
        if hooked:
            args = [self._hooked(value, node) for value in args]
        result = self._forward(owner, args, keywords, node)
        if hooked:
            result = self._hooked(result, node)
        hooks = owner.attrs.get("$hooks")
        for hook in list(hooks.items) if isinstance(hooks, Seq) else ():
            changed = self.walk.calls.call_value(hook, [owner, Seq(list(args), "tuple"), result], {}, node)
            if not (isinstance(changed, Const) and changed.value is None) and not isinstance(changed, Opaque):
                result = changed
        return result

    def _prepared(self, owner: Instance, args: list[Value], node: ast.AST) -> list[Value]:
        """The arguments after the module's forward pre-hooks."""
        hooks = owner.attrs.get("$pre_hooks")
        for hook in list(hooks.items) if isinstance(hooks, Seq) else ():
            changed = self.walk.calls.call_value(hook, [owner, Seq(list(args), "tuple")], {}, node)
            if isinstance(changed, Seq):
                args = list(changed.items)
            elif isinstance(changed, Tensor):
                args = [changed]
        return args

    def _hooked(self, value: Value, node: ast.AST) -> Value:
        """A module's backward hook is a Function around what goes in and what comes out."""
        if isinstance(value, Seq):
            return Seq([self._hooked(v, node) for v in value.items], value.kind, value.rest)
        if not isinstance(value, Tensor) or not self.walk.tensors.grad_of(value):
            return value
        made = Tensor(value.storages, value.grad, self.walk.tensors.record("hook", [((), value)], node))
        made.leaf, made.name, made.opaque = False, value.name, value.opaque
        made.of_function, made.function_view = "the module's backward hook", True
        return made

    def _forward(
        self, owner: Instance, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if owner.cls is not None:
            for name in ("__call__", "forward"):
                method = self.find(owner.cls, name)
                if isinstance(method, Function):
                    return self.walk.calls.call_function(method, [owner, *args], keywords, node)
        return self.walk.layers.module_call(owner, args, keywords, node)


def _canonical(name: str) -> str:
    return name.replace("torch.nn.modules.module.", "torch.nn.").replace(
        "torch.autograd.function.", "torch.autograd."
    )
