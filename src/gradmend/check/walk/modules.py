"""torch.nn: what its objects hold."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradmend.check import table
from gradmend.check.values import (
    MAYBE,
    NONE,
    YES,
    Alt,
    Const,
    Dict,
    Group,
    Instance,
    Opaque,
    Seq,
    Storage,
    Tensor,
    Value,
    is_const,
    unknown,
)
from gradmend.check.walk.flags import MODULES
from gradmend.check.walk.kinds import BATCH_NORM, CONTAINERS, CONV, LOSS, RECURRENT, SAME, WEIGHTED, snake
from gradmend.check.walk.sparse import GRADIENT

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker


class Modules:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def parameter(self, name: str, grad: int = YES, site: ast.AST | None = None) -> Tensor:
        made = Tensor((Storage(name, "param"),), grad)
        made.param, made.name = True, name
        made.origin = self.walk.at(site) if site is not None else None
        return made

    def make_module(
        self,
        dotted: str,
        args: list[Value],
        keywords: dict[str, Value],
        node: ast.AST,
        made: Instance | None = None,
    ) -> Value:
        """An object of a class of torch's, or what such a base gives to `made`."""
        name = dotted.rpartition(".")[2]
        made = made or Instance(None, name)
        made.nn = made.nn or name
        made.site, made.call = made.site or self.walk.at(node), made.call or node
        inplace = keywords.get("inplace")
        if inplace is None and len(args) > MODULES.get(name, len(args)):
            inplace = args[MODULES[name]]
        if inplace is not None:
            made.attrs["inplace"] = inplace
        if "return_indices" in keywords:
            made.attrs["return_indices"] = keywords["return_indices"]
        if "Dropout" in name and (args or "p" in keywords):
            made.attrs["p"] = args[0] if args else keywords["p"]
        if name == "LeakyReLU":
            made.attrs["negative_slope"] = keywords.get("negative_slope", args[0] if args else NONE)
        if name in CONTAINERS or name == "ParameterList":
            items: list[Value] = []
            for value in args:
                if isinstance(value, Dict):
                    items += value.items.values()
                elif isinstance(value, Seq) or (name != "Sequential" and not isinstance(value, Instance)):
                    items += [
                        v.items[1] if isinstance(v, Seq) and len(v.items) == 2 else v
                        for v in self.walk.iteration.iterate(value, None)
                    ]
                else:
                    items.append(value)
            made.attrs["items"] = Seq(items)
        elif name in ("ModuleDict", "ParameterDict"):
            made.attrs["dict"] = args[0] if args and isinstance(args[0], Dict) else Dict({})
        elif name in WEIGHTED or CONV.match(name):
            for p in WEIGHTED.get(name, ("", ("weight", "bias")))[1]:
                if p == "bias" and is_const(keywords.get("bias"), False):
                    made.attrs[p] = NONE
                elif not (
                    name.endswith("Norm")
                    and is_const(keywords.get("elementwise_affine", keywords.get("affine")), False)
                ):
                    made.attrs[p] = self.parameter(f"{p}", YES, node)
            if name.startswith("Embedding"):
                bound = keywords.get("max_norm", args[3] if len(args) > 3 else NONE)
                made.attrs["max_norm"] = bound
                weight = made.attrs["weight"]
                if isinstance(weight, Tensor) and is_const(keywords.get("sparse"), True):
                    weight.sparse = GRADIENT
        elif BATCH_NORM.match(name):
            if not is_const(keywords.get("affine"), False):
                made.attrs["weight"], made.attrs["bias"] = self.parameter("weight"), self.parameter("bias")
            for stat in ("running_mean", "running_var"):
                buffer = Tensor((Storage(stat, "buffer"),))
                buffer.name = stat
                made.attrs[stat] = buffer
        elif RECURRENT.match(name):
            for p in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
                made.attrs[p] = self.parameter(p)
        elif name in SAME and args:
            if name != "Identity":
                made.attrs["module"] = args[0]
        elif name == "PReLU":
            made.attrs["weight"] = self.parameter("weight")
        elif name not in LOSS and table.op(snake(name)) is None and name not in ("Module", "Function"):
            weights = self.parameter("parameters", MAYBE if name[:1].islower() else YES)
            made.attrs["$weights"] = weights
        return made

    def module_items(self, owner: Instance) -> list[Value] | None:
        items = owner.attrs.get("items")
        if isinstance(items, Seq) and (owner.nn in CONTAINERS or owner.cls is not None):
            return [*items.items, *([items.rest] if items.rest is not None else [])]
        inner = owner.attrs.get("dict")
        if isinstance(inner, Dict) and owner.nn in ("ModuleDict", "ParameterDict"):
            return [Const(k) for k in inner.items]
        return None

    def submodules(self, owner: Value, seen: set[int] | None = None) -> list[Instance]:
        seen = set() if seen is None else seen
        if id(owner) in seen or len(seen) > 300:
            return []
        seen.add(id(owner))
        found: list[Instance] = []
        if isinstance(owner, Instance):
            if owner.nn in ("ndarray", "optim", "ctx", "super"):
                return []
            if owner.nn or self.walk.classes.is_module(owner.cls):
                found.append(owner)
            for value in list(owner.attrs.values()):
                found += self.submodules(value, seen)
        elif isinstance(owner, Alt):
            for _, option in owner.options:
                found += self.submodules(option, seen)
        elif isinstance(owner, Seq):
            for item in owner.items:
                found += self.submodules(item, seen)
        elif isinstance(owner, Dict):
            for item in owner.items.values():
                found += self.submodules(item, seen)
        return found

    def parameters_of(self, owner: Value) -> list[Tensor]:
        if isinstance(owner, Opaque):
            return [self.walk.calls.parameters_of_opaque(owner)]
        found: list[Tensor] = []
        for module in self.submodules(owner):
            for value in list(module.attrs.values()):
                for _, tensor in self.walk.tensors_in(value, deep=1) if not isinstance(value, Opaque) else ():
                    if tensor.param and tensor not in found:
                        found.append(tensor)
            if module.nn == "ParameterDict":
                found += [t for _, t in self.walk.tensors_in(module.attrs.get("dict")) if t not in found]
        return found

    def group(self, tensors: list[Tensor], name: str = "") -> Value:
        """One value that stands for each of these: a loop over parameters binds it once."""
        if not tensors:
            return unknown(name)
        if len(tensors) == 1:
            return tensors[0]
        made = Group(tensors)
        made.name = name or tensors[0].name
        made.param = all(t.param for t in tensors)
        return made

    def detached_group(self, owner: Instance) -> Value:
        tensors = self.parameters_of(owner)
        made = Tensor(tuple(s for t in tensors for s in t.storages) or (Storage(),))
        made.name = "state_dict()"
        made.uncertain = len(made.storages) > 1
        return made
