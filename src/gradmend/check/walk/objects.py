"""Methods of objects that are built in: lists, dictionaries, distributions, and those of which nothing is known."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradmend.check.values import NONE, Class, Const, Dict, Instance, Opaque, Seq, Value, unknown
from gradmend.check.walk.optim import belongs

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker

_MOST = 24  # items of a list that are known
_TEXT = frozenset("startswith endswith lower upper strip".split())


class Objects:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def builtin_method(
        self, owner: Value, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if isinstance(owner, Instance):
            return self._instance_method(owner, name, args, keywords, node)
        if isinstance(owner, Class) and name == "apply":
            return self.walk.functions.apply_function(owner, args, keywords, node)
        for value in args if isinstance(owner, (Seq, Dict, Opaque)) else ():
            self.walk.statements.share(value)  # it may be kept there
        if isinstance(owner, Seq):
            return self._seq_method(owner, name, args)
        if isinstance(owner, Dict):
            return self._dict_method(owner, name, args, keywords)
        if isinstance(owner, Opaque):
            return self._unknown_method(owner, name, args, keywords, node)
        if isinstance(owner, Const) and isinstance(owner.value, str):
            return _text_method(owner.value, name, args)
        return unknown()

    def _instance_method(
        self, owner: Instance, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if owner.nn == "optim":
            return self.walk.optim.optimizer_method(owner, name, args, keywords, node)
        if owner.nn == "ctx":
            return self.walk.functions.ctx_method(owner, name, args, node)
        if owner.nn == "scaler":
            if name == "scale" and args:
                return (
                    self.walk.tensors.apply("mul", node, {"self": args[0], "other": Const(1.0)})
                    if self.walk.tensors_in(args[0])
                    else unknown()
                )
            if name == "step" and args:
                return self.walk.calls.call_value(
                    self.walk.attributes.attribute(args[0], "step", node), args[1:], {}, node
                )
            return unknown()
        if owner.nn == "dist":
            return self._distribution(owner, name, args, node)
        if owner.nn == "ndarray":
            return self.walk.arrays.array_method(owner, name, args, node)
        if owner.nn == "grad_mode" and name in ("__enter__", "__exit__"):
            return self.walk.contexts.by_hand(owner, name)
        if owner.nn == "stack":
            return self.walk.contexts.stacked(args[0]) if name == "enter_context" and args else unknown()
        if owner.nn == "handle":
            hooks, hook = owner.attrs.get("$hooks"), owner.attrs.get("$hook")
            if name == "remove" and isinstance(hooks, Seq) and hook in hooks.items:
                self.walk.hold(hooks, [other for other in hooks.items if other is not hook])
            return NONE
        if owner.nn == "super":
            return unknown()
        made = self.walk.module_methods.module_method(owner, name, args, keywords, node)
        if made is not None:
            return made
        if name in ("backward", "manual_backward") and args:
            self.walk.backward.backward([t for _, t in self.walk.tensors_in(args[0])], node, keywords)
            return NONE
        return self.walk.calls.unknown_call(None, args, keywords, node)

    def _unknown_method(
        self, owner: Opaque, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if name == "parameters":
            return Seq([weights := self.walk.calls.parameters_of_opaque(owner)], "iterator", weights)
        if name in ("backward", "manual_backward"):
            roots = [t for _, t in self.walk.tensors_in(args[0])] if args else [owner.as_tensor()]
            self.walk.backward.backward(roots, node, keywords)
            return NONE
        if name in ("to", "cuda", "cpu", "train", "eval", "float", "half", "double"):
            return owner
        if name == "step" and "opt" in owner.name.lower():
            self.walk.optim.unseen_step(owner, node)
            return NONE
        if name == "zero_grad":
            for model in self.walk.models:
                if belongs(owner.name, model.name, len(self.walk.models)):
                    for storage in self.walk.calls.parameters_of_opaque(model).storages:
                        storage.has_grad = False
            return NONE
        # A method of an object that was handed in: `self.model(x)` is its own model, `trainer.loss(x)` may be anything.
        part = owner.attrs.get(name)
        callee = owner if name == "forward" else part if isinstance(part, Opaque) else None
        return self.walk.calls.unknown_call(callee, args, keywords, node)

    def _distribution(self, owner: Instance, name: str, args: list[Value], node: ast.AST) -> Value:
        if name in ("sample", "sample_n"):
            return self.walk.tensors.fresh(node)
        held = Seq([*owner.attrs.values(), *args])
        return self.walk.ops.all_kept(f"{name}", [held], node)

    def _seq_method(self, owner: Seq, name: str, args: list[Value]) -> Value:
        if name in ("append", "appendleft", "add") and args:
            self.walk.statements.share(args[0])
            self.walk.hold(owner, [*owner.items[: _MOST - 1], args[0]])
        elif name == "insert" and len(args) > 1:
            self.walk.statements.share(args[1])
            self.walk.hold(owner, [args[1], *owner.items])
        elif name == "extend" and args:
            self.walk.hold(owner, [*owner.items, *self.walk.iteration.iterate(args[0], None)][:_MOST])
        elif name in ("pop", "popleft"):
            if owner.items and owner.rest is None:
                at = (
                    0
                    if name == "popleft" or (args and isinstance(args[0], Const) and args[0].value == 0)
                    else -1
                )
                taken = self.walk.containers.nth(owner, Const(at))
                self.walk.hold(owner, owner.items[1:] if at == 0 else owner.items[:-1])
                return taken
            return owner.rest or unknown()
        elif name == "clear":
            self.walk.hold(owner, [], None)
        elif name == "copy":
            return Seq(list(owner.items), owner.kind, owner.rest)
        elif name in ("index", "count"):
            return unknown()
        return NONE

    def _dict_method(self, owner: Dict, name: str, args: list[Value], keywords: dict[str, Value]) -> Value:
        rest = [owner.rest] if owner.rest is not None else []
        if name == "items":
            pairs: list[Value] = [Seq([Const(k), v], "tuple") for k, v in owner.items.items()]
            return Seq(pairs + [Seq([unknown("key"), v], "tuple") for v in rest], "iterator")
        if name == "values":
            return Seq([*owner.items.values(), *rest], "iterator")
        if name == "keys":
            return Seq([Const(k) for k in owner.items], "iterator", unknown() if rest else None)
        if name in ("get", "pop", "setdefault") and args:
            key = args[0]
            if isinstance(key, Const) and isinstance(key.value, (str, int)) and key.value in owner.items:
                return owner.items[key.value]
            if name == "setdefault" and len(args) > 1 and isinstance(key, Const):
                self.walk.store(owner.items, key.value, args[1])
                return args[1]
            return owner.rest or (args[1] if len(args) > 1 else unknown())
        if name == "update":
            for value in args:
                if isinstance(value, Dict):
                    for k, v in value.items.items():
                        self.walk.store(owner.items, k, v)
            for k, v in keywords.items():
                self.walk.store(owner.items, k, v)
        if name == "copy":
            return Dict(dict(owner.items), owner.rest)
        return NONE


def _text_method(text: str, name: str, args: list[Value]) -> Value:
    given = [a.value for a in args if isinstance(a, Const) and isinstance(a.value, str)]
    if name not in _TEXT or len(given) < len(args):
        return unknown()
    try:
        return Const(getattr(text, name)(*given))
    except TypeError:
        return unknown()
