"""Attributes and methods of nn.Module."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradmend.check.values import (
    NO,
    NONE,
    YES,
    Bound,
    Const,
    Dict,
    Instance,
    Seq,
    Tensor,
    Value,
    is_const,
    unknown,
)

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker

_MOST = 32  # modules that a loop over all of them goes through: it is short, and the module it waits for may come late
_MODULE_METHODS = frozenset(
    """
    parameters named_parameters modules children named_modules named_children buffers to cuda cpu train eval
    requires_grad_ zero_grad register_buffer register_parameter add_module state_dict load_state_dict apply half float
    double register_forward_hook register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook
    """.split()
)


class ModuleMethods:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def module_attribute(self, owner: Instance, name: str, node: ast.AST) -> Value | None:
        if owner.nn == "ndarray":
            return Bound(owner, name)
        if name == "training":
            # As it was made, unless nothing is known of who made it and what has happened to it since.
            made = unknown("training") if owner.stray else Const(True)
            owner.attrs["training"] = made
            return made
        if owner.nn == "ModuleDict" or owner.nn == "ParameterDict":
            inner = owner.attrs.get("dict")
            if isinstance(inner, Dict) and name in inner.items:
                return inner.items[name]
        if owner.nn or name in _MODULE_METHODS:
            return Bound(owner, name)
        return None

    def module_method(
        self, owner: Instance, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value | None:
        """Methods of nn.Module; None where it is not one of them."""
        if name in ("parameters", "buffers"):
            each = (
                self.walk.modules.group(self.walk.modules.parameters_of(owner), "parameters")
                if name == "parameters"
                else unknown("buffers")
            )
            return Seq([each], "iterator", each)
        if name == "named_parameters":
            pair = Seq(
                [
                    unknown("name"),
                    self.walk.modules.group(self.walk.modules.parameters_of(owner), "parameters"),
                ],
                "tuple",
            )
            return Seq([pair], "iterator", pair)
        if name in ("modules", "children"):
            found: list[Value] = [
                m for m in self.walk.modules.submodules(owner) if name == "modules" or m is not owner
            ]
            return Seq(found[:_MOST], "modules")
        if name in ("named_modules", "named_children"):
            return Seq(
                [Seq([unknown("name"), m], "tuple") for m in self.walk.modules.submodules(owner)[:_MOST]],
                "modules",
            )
        if name == "apply" and args:
            for module in self.walk.modules.submodules(owner)[:_MOST]:
                self.walk.calls.call_value(args[0], [module], {}, node)
            return owner
        if name in (
            "to",
            "cuda",
            "cpu",
            "float",
            "double",
            "half",
            "bfloat16",
            "type",
            "share_memory",
        ):
            return owner
        if name in ("train", "eval"):
            given = args[0] if args else keywords.get("mode", Const(True))
            known = self.walk.questions.truthy(given) if name == "train" else False
            mode: Value = unknown("training") if known is None else Const(known)
            for module in self.walk.modules.submodules(owner):
                self.walk.store(module.attrs, "training", mode)
            return owner
        if name == "requires_grad_":
            on = not (args and is_const(args[0], False))
            for tensor in self.walk.modules.parameters_of(owner):
                tensor.grad = YES if on else NO
            return owner
        if name == "zero_grad":
            keep = keywords.get("set_to_none", args[0] if args else None)
            self.walk.gradients.dropped(self.walk.modules.parameters_of(owner), keep, self.walk.at(node))
            return NONE
        if name in ("register_buffer", "register_parameter", "add_module", "register_module") and args:
            value = (
                args[1]
                if len(args) > 1
                else keywords.get("tensor", keywords.get("param", keywords.get("module", NONE)))
            )
            if isinstance(args[0], Const) and isinstance(args[0].value, str):
                if isinstance(value, Tensor):
                    value.name = value.name or args[0].value
                self.walk.store(owner.attrs, args[0].value, value)
            return NONE
        if name in ("append", "extend", "insert") and isinstance(owner.attrs.get("items"), Seq):
            items = owner.attrs["items"]
            assert isinstance(items, Seq)
            if name == "extend" and args:
                self.walk.hold(items, [*items.items, *self.walk.iteration.iterate(args[0], None)])
            elif args:
                self.walk.hold(items, [*items.items, args[-1]])
            return owner
        if name == "state_dict":
            return Dict({}, rest=self.walk.modules.detached_group(owner))
        if name in ("items", "values", "keys") and isinstance(owner.attrs.get("dict"), Dict):
            return self.walk.objects.builtin_method(owner.attrs["dict"], name, args, keywords, node)
        if name == "load_state_dict":
            with self.walk.mode(False):
                for tensor in self.walk.modules.parameters_of(owner):
                    self.walk.writes.write(tensor, "copy_", node, shown="load_state_dict()", name=tensor.name)
            return unknown()
        if name == "reset_parameters":
            with self.walk.mode(False):
                for tensor in self.walk.modules.parameters_of(owner):
                    self.walk.writes.write(
                        tensor, "copy_", node, shown="reset_parameters()", name=tensor.name
                    )
            return NONE
        if name in ("register_forward_hook", "register_forward_pre_hook") and args:
            hooks = owner.attrs.setdefault("$pre_hooks" if "_pre_" in name else "$hooks", Seq([]))
            handle = Instance(None, "handle")
            if isinstance(hooks, Seq) and len(hooks.items) < 4:
                self.walk.hold(hooks, [*hooks.items, args[0]])
                handle.attrs = {"$hooks": hooks, "$hook": args[0]}
            return handle
        if name in ("register_full_backward_hook", "register_full_backward_pre_hook"):
            self.walk.store(owner.attrs, "$backward_hooks", Const(True))
            if args:
                self.walk.backward.module_hook(args[0], owner, node)
            return unknown()
        if name == "flatten_parameters" or name.startswith("register_"):
            return unknown()
        if name == "forward":
            return self.walk.layers.module_call(owner, args, keywords, node)
        return None

    def base_method(self, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """super().method(...) where the base is torch's: [self, base, method, *args]."""
        me, base, method = args[0], args[1], args[2]
        assert isinstance(me, Instance) and isinstance(base, Const) and isinstance(method, Const)
        rest = args[3:]
        if method.value == "__init__":
            if base.value and "Function" not in base.value:
                self.walk.modules.make_module(str(base.value), rest, keywords, node, me)
                if me.nn == "Module":
                    me.nn = ""
            return NONE
        if method.value in ("forward", "__call__"):
            return self.walk.layers.module_call(me, rest, keywords, node)
        if base.value.startswith("torch.optim"):
            return self.walk.optim.optimizer_method(me, str(method.value), rest, keywords, node)
        made = self.module_method(me, str(method.value), rest, keywords, node)
        return made if made is not None else unknown()
