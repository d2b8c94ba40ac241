"""Optimizers: the parameters they hold, and what a step writes."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from gradmend.check.values import (
    NONE,
    Alt,
    Bound,
    Const,
    Dict,
    Function,
    Group,
    Instance,
    Number,
    Opaque,
    Seq,
    Tensor,
    Value,
    unknown,
)

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker


class Optim:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def make_optimizer(
        self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Instance:
        made = Instance(None, "optim")
        params = args[0] if args else keywords.get("params", unknown("params"))
        self.hold(made, params, keywords)
        made.attrs["$name"] = Const(name)
        made.attrs["$fused"] = keywords.get("fused", NONE)
        return made

    def hold(self, made: Instance, params: Value, options: dict[str, Value]) -> None:
        held = list(self._parameters_in(params))
        made.attrs["$params"] = Seq(held)
        each = self.walk.modules.group([t for t in held if isinstance(t, Tensor)], "parameters")
        group = Dict({"params": Seq([each], rest=each), "lr": Number(), **options})
        made.attrs["param_groups"] = Seq([group])

    def _parameters_in(self, value: Value, deep: int = 0) -> list[Value]:
        if isinstance(value, Group):
            return list(value.members)
        if isinstance(value, Tensor):
            return [value]
        if isinstance(value, Opaque):
            owner = value.attrs.get("$owner")
            return [self.walk.calls.parameters_of_opaque(owner)] if isinstance(owner, Opaque) else []
        found: list[Value] = []
        if deep < 5:
            if isinstance(value, Seq):
                for item in [*value.items, *([value.rest] if value.rest is not None else [])]:
                    found += self._parameters_in(item, deep + 1)
            elif isinstance(value, Dict):
                for item in value.items.values():
                    found += self._parameters_in(item, deep + 1)
            elif isinstance(value, Alt):
                for _, option in value.options:
                    found += self._parameters_in(option, deep + 1)
        return found

    def optimizer_method(
        self, owner: Instance, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        params = owner.attrs.get("$params")
        tensors = [t for t in params.items if isinstance(t, Tensor)] if isinstance(params, Seq) else []
        if name == "step":
            closure = args[0] if args else keywords.get("closure")
            result: Value = NONE
            if isinstance(closure, (Function, Bound, Alt)):
                with self.walk.mode(True):
                    result = self.walk.calls.call_value(closure, [], {}, node)
            kind = owner.attrs.get("$name")
            word = f"{kind.value}.step" if isinstance(kind, Const) else "optimizer.step"
            if isinstance(kind, Const):
                self.walk.sparse.stepped(str(kind.value), owner, tensors, node)
            fused = owner.attrs.get("$fused")
            how = "fused" if isinstance(fused, Const) and fused.value is True else "loud"
            with self.walk.mode(False):
                for tensor in tensors:
                    if any(s.has_grad for s in tensor.storages) or tensor.opaque:
                        self.walk.writes.write(tensor, "add_", node, shown=word, how=how, name=tensor.name)
            return result
        if name == "zero_grad":
            keep = keywords.get("set_to_none", args[0] if args else None)
            self.walk.gradients.dropped(tensors, keep, self.walk.at(node))
            return NONE
        if name == "add_param_group" and args and isinstance(params, Seq):
            self.walk.hold(params, [*params.items, *self._parameters_in(args[0])])
        return unknown()

    def unseen_step(self, owner: Opaque, node: ast.AST) -> None:
        """An optimizer and models that were handed in: by their names, `opt_d` steps `d`, and one of each belong together."""
        with self.walk.mode(False):
            for model in self.walk.models:
                weights = self.walk.calls.parameters_of_opaque(model)
                if weights.storages[0].has_grad and belongs(owner.name, model.name, len(self.walk.models)):
                    self.walk.writes.write(
                        weights, "add_", node, shown=f"{owner.name}.step", name=f"{model.name}'s parameters"
                    )


def belongs(optimizer: str, model: str, models: int) -> bool:
    bare = re.sub(r"optimi[sz]er|optim|opt|self|[._]", "", optimizer.lower())
    name = re.sub(r"self|model|network|net|[._]", "", model.lower())
    return models == 1 or (
        bool(bare) and bool(name) and (bare == name or bare[0] == name[0] == bare or name in bare)
    )
