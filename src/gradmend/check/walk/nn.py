"""torch.nn and torch.optim: what their objects hold, and what a call of them does."""

from __future__ import annotations

import ast
import re
from typing import Any

from gradmend.check import table
from gradmend.check.values import (
    MAYBE,
    NO,
    NONE,
    YES,
    Alt,
    Bound,
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
from gradmend.check.walk.calls import Calls

CONTAINERS = {"Sequential", "ModuleList", "ParameterList"}
# Modules with weights: the function behind them, and the names of their parameters.
_WEIGHTED = {
    "Linear": ("linear", ("weight", "bias")),
    "LazyLinear": ("linear", ("weight", "bias")),
    "Bilinear": ("bilinear", ("weight", "bias")),
    "Embedding": ("embedding", ("weight",)),
    "EmbeddingBag": ("embedding", ("weight",)),
    "LayerNorm": ("layer_norm", ("weight", "bias")),
    "RMSNorm": ("rms_norm", ("weight",)),
    "GroupNorm": ("group_norm", ("weight", "bias")),
    "PReLU": ("prelu", ("weight",)),
}
_RECURRENT = re.compile(r"^(LSTM|GRU|RNN)(Cell)?$")
_CONV = re.compile(r"^(?:Lazy)?Conv(Transpose)?(\d)d$")
_BATCH_NORM = re.compile(r"^(?:Lazy|Sync)?(Batch|Instance)Norm(\dd)?$")
_LOSS = {
    "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll_loss",
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "BCELoss": "binary_cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "KLDivLoss": "kl_div",
}
_FUNCTIONS = {"LogSigmoid": "logsigmoid", "PReLU": "prelu", "RReLU": "rrelu"}
_SAME = {"Identity", "DataParallel", "DistributedDataParallel"}


def snake(name: str) -> str:
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    for odd, plain in (("ReLU", "Relu"), ("SiLU", "Silu"), ("Softmax2d", "Softmax")):
        name = name.replace(odd, plain)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


class NN(Calls):
    # --- building

    def parameter(self, name: str, grad: int = YES, site: ast.AST | None = None) -> Tensor:
        made = Tensor((Storage(name, "param"),), grad)
        made.param, made.name = True, name
        made.origin = self.at(site) if site is not None else None
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
        made.site = made.site or self.at(node)
        inplace = keywords.get("inplace")
        if (
            inplace is None
            and name in ("ReLU", "ReLU6", "SiLU", "SELU", "Mish", "Hardswish", "Hardsigmoid")
            and args
        ):
            inplace = args[0]
        if inplace is not None:
            made.attrs["inplace"] = inplace
        if name in CONTAINERS or name == "ParameterList":
            items: list[Value] = []
            for value in args:
                if isinstance(value, Dict):
                    items += value.items.values()
                elif isinstance(value, Seq) or (name != "Sequential" and not isinstance(value, Instance)):
                    items += [
                        v.items[1] if isinstance(v, Seq) and len(v.items) == 2 else v
                        for v in self.iterate(value, None)
                    ]
                else:
                    items.append(value)
            made.attrs["items"] = Seq(items)
        elif name in ("ModuleDict", "ParameterDict"):
            made.attrs["dict"] = args[0] if args and isinstance(args[0], Dict) else Dict({})
        elif name in _WEIGHTED or _CONV.match(name):
            for p in _WEIGHTED.get(name, ("", ("weight", "bias")))[1]:
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
        elif _BATCH_NORM.match(name):
            if not is_const(keywords.get("affine"), False):
                made.attrs["weight"], made.attrs["bias"] = self.parameter("weight"), self.parameter("bias")
            for stat in ("running_mean", "running_var"):
                buffer = Tensor((Storage(stat, "buffer"),))
                buffer.name = stat
                made.attrs[stat] = buffer
        elif _RECURRENT.match(name):
            for p in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
                made.attrs[p] = self.parameter(p)
        elif name in _SAME and args:
            if name != "Identity":
                made.attrs["module"] = args[0]
        elif name == "PReLU":
            made.attrs["weight"] = self.parameter("weight")
        elif name not in _LOSS and table.op(snake(name)) is None and name not in ("Module", "Function"):
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

    # --- what a model holds

    def submodules(self, owner: Value, seen: set[int] | None = None) -> list[Instance]:
        seen = set() if seen is None else seen
        if id(owner) in seen or len(seen) > 300:
            return []
        seen.add(id(owner))
        found: list[Instance] = []
        if isinstance(owner, Instance):
            if owner.nn in ("ndarray", "optim", "ctx", "super"):
                return []
            if owner.nn or self.is_module(owner.cls):
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
            return [self.parameters_of_opaque(owner)]
        found: list[Tensor] = []
        for module in self.submodules(owner):
            for value in list(module.attrs.values()):
                for _, tensor in self.tensors(value, deep=1) if not isinstance(value, Opaque) else ():
                    if tensor.param and tensor not in found:
                        found.append(tensor)
            if module.nn == "ParameterDict":
                found += [t for _, t in self.tensors(module.attrs.get("dict")) if t not in found]
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

    # --- calling

    def module_call(
        self, owner: Instance, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        name = owner.nn
        x = args[0] if args else next(iter(keywords.values()), None)
        if name == "Sequential" or (name == "" and "items" in owner.attrs):
            value = x or unknown()
            for item in self.module_items(owner) or []:
                value = self.call_value(item, [value], {}, node)
            return value
        if name == "Identity":
            return x or unknown()
        if name in _SAME:
            inner = owner.attrs.get("module")
            return self.call_value(inner, args, keywords, node) if inner is not None else unknown()
        if x is None:
            return self.unknown_call(None, args, keywords, node)
        weight = owner.attrs.get("weight", NONE)
        bias = owner.attrs.get("bias", NONE)
        if name in ("Linear", "LazyLinear"):
            return self.linear(x, weight, bias, node)
        if name == "Bilinear" and len(args) > 1:
            return self.apply(
                "bilinear", node, {"input1": args[0], "input2": args[1], "weight": weight, "bias": bias}
            )
        if _CONV.match(name):
            return self.apply("conv2d", node, {"input": x, "weight": weight, "bias": bias}, shown=snake(name))
        if name.startswith("Embedding"):
            return self.embedding(x, weight, owner.attrs.get("max_norm", NONE), node)
        if _BATCH_NORM.match(name):
            return self.batch_norm(x, weight, bias, node, snake(name))
        if name in ("LayerNorm", "GroupNorm", "RMSNorm"):
            return self.norm(x, weight, bias, node, snake(name))
        if name == "PReLU":
            return self.apply("prelu", node, {"self": x, "weight": weight}, shown="prelu")
        if _RECURRENT.match(name):
            return self.recurrent(owner, args, keywords, node)
        if name in _LOSS:
            target = args[1] if len(args) > 1 else keywords.get("target", NONE)
            return self.loss(_LOSS[name], x, target, node)
        function = re.sub(r"_?\dd$", "", snake(name)) if table.op(snake(name)) is None else snake(name)
        inplace = owner.attrs.get("inplace")
        if table.op(function) is not None:
            if inplace is not None and self.truthy(inplace) is True:
                return self.write(x, f"{function}_", node, shown=f"{name}(inplace=True)", flag=True)
            if inplace is not None and self.truthy(inplace) is None and not is_const(inplace, False):
                pass
            first = (table.op(function) or _NOTHING).args[0]
            slots = {first: x}
            second = (table.op(function) or _NOTHING).args[1:2]
            if len(args) > 1 and second:
                slots[second[0]] = args[1]
            return self.apply(function, node, slots, shown=function)
        if name.startswith("Dropout") or name.endswith("Dropout"):
            if inplace is not None and self.truthy(inplace) is True:
                return self.write(x, "mul_", node, shown=f"{name}(inplace=True)", flag=True)
            return self.apply("dropout", node, {"input": x}, shown="dropout")
        return self.generic_module(owner, args, keywords, node)

    def generic_module(
        self, owner: Instance, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        found = [pair for value in (*args, *keywords.values()) for pair in self.tensors(value)]
        weights = owner.attrs.get("$weights")
        if isinstance(weights, Tensor):
            found.append(((), weights))
        grad = self.strongest(found)
        result = self.fresh(node)
        result.opaque = True
        if grad:
            made = self.record(snake(owner.nn) or "call", found, node)
            made.keeps = True
            made.sure = False
            result.node, result.grad, result.leaf = made, min(grad, MAYBE), False
            if isinstance(weights, Tensor):
                self.save((), weights, made, node, snake(owner.nn), "weight", False)
        return result

    def linear(self, x: Value, weight: Value, bias: Value, node: ast.AST) -> Value:
        # It multiplies by a transposed view of the weight: that view is what is kept.
        slots = {
            "input": x,
            "weight": self.view(weight, "one", node, "t") if not isinstance(weight, Const) else weight,
        }
        if not isinstance(bias, Const):
            slots["bias"] = bias
        return self.apply("linear", node, slots, shown="linear")

    def embedding(self, ids: Value, weight: Value, max_norm: Value, node: ast.AST) -> Value:
        if isinstance(max_norm, Const) and max_norm.value is not None:
            with self.mode(False):
                self.write(weight, "renorm_", node, shown="the lookup with max_norm", name="weight")
        return self.apply("embedding", node, {"weight": weight, "indices": ids}, shown="embedding")

    def batch_norm(self, x: Value, weight: Value, bias: Value, node: ast.AST, shown: str) -> Value:
        slots = {"self": x, "mat2": weight} if not isinstance(weight, Const) else {"self": x}
        return self._kept_pair(x, weight, bias, node, shown, slots)

    def norm(self, x: Value, weight: Value, bias: Value, node: ast.AST, shown: str) -> Value:
        return self._kept_pair(x, weight, bias, node, shown, {})

    def _kept_pair(
        self, x: Value, weight: Value, bias: Value, node: ast.AST, shown: str, slots: dict[str, Value]
    ) -> Value:
        """A normalisation: its input and its weight are kept, its result is not."""
        info = table.Op(
            shown,
            ("input", "weight", "bias"),
            {"input": ("input", "weight", "bias"), "weight": ("input", "weight", "bias")},
        )
        found = {"input": self.tensors(x), "weight": self.tensors(weight), "bias": self.tensors(bias)}
        everything = [pair for pairs in found.values() for pair in pairs]
        grad = self.strongest(everything)
        result = self.fresh(node)
        if grad:
            made = self.record(shown, everything, node)
            made.sure = grad == YES
            result.node, result.grad, result.leaf = made, grad, False
            self.keep(info, made, node, found, result, shown)
        return result

    def loss(self, function: str, x: Value, target: Value, node: ast.AST) -> Value:
        first = (table.op(function) or _NOTHING).args[0]
        return self.apply(function, node, {first: x, "target": target}, shown=function)

    def recurrent(
        self, owner: Instance, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        x = args[0] if args else keywords.get("input", unknown())
        state = args[1] if len(args) > 1 else keywords.get("hx", NONE)
        weights = [v for v in owner.attrs.values() if isinstance(v, Tensor) and v.param]
        found: dict[str, list[tuple[Path, Tensor]]] = {"input": self.tensors(x), "hx": self.tensors(state)}
        found["weight"] = [((), w) for w in weights]
        everything = [pair for pairs in found.values() for pair in pairs]
        grad = self.strongest(everything)
        shown = snake(owner.nn)
        made = self.record(shown, everything, node)
        made.sure = grad == YES
        if grad:
            readers = ("input", "hx", "weight")
            self.keep(
                table.Op(shown, readers, dict.fromkeys(readers, readers)), made, node, found, None, shown
            )

        def result() -> Tensor:
            tensor = self.fresh(node)
            if grad:
                tensor.node, tensor.grad, tensor.leaf = made, grad, False
            return tensor

        if owner.nn == "LSTMCell":
            return Seq([result(), result()], "tuple")
        if owner.nn.endswith("Cell"):
            tensor = result()
            if owner.nn == "RNNCell" and grad:
                self.save((), tensor, made, node, shown, "result", grad == YES)
            return tensor
        return Seq(
            [result(), Seq([result(), result()], "tuple") if owner.nn == "LSTM" else result()], "tuple"
        )

    # --- attributes and methods of modules

    def module_attribute(self, owner: Instance, name: str, node: ast.AST) -> Value | None:
        if owner.nn == "ndarray":
            return Bound(owner, name)
        if name == "training":
            made = unknown("training")
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
                self.group(self.parameters_of(owner), "parameters")
                if name == "parameters"
                else unknown("buffers")
            )
            return Seq([each], "iterator", each)
        if name == "named_parameters":
            pair = Seq([unknown("name"), self.group(self.parameters_of(owner), "parameters")], "tuple")
            return Seq([pair], "iterator", pair)
        if name in ("modules", "children"):
            found: list[Value] = [m for m in self.submodules(owner) if name == "modules" or m is not owner]
            return Seq(found[:12], "iterator")
        if name in ("named_modules", "named_children"):
            return Seq([Seq([unknown("name"), m], "tuple") for m in self.submodules(owner)[:12]], "iterator")
        if name in (
            "to",
            "cuda",
            "cpu",
            "float",
            "double",
            "half",
            "bfloat16",
            "apply",
            "type",
            "share_memory",
        ):
            return owner
        if name in ("train", "eval"):
            mode = name == "train" and not (args and is_const(args[0], False))
            for module in self.submodules(owner):
                self.store(module.attrs, "training", Const(mode))
            return owner
        if name == "requires_grad_":
            on = not (args and is_const(args[0], False))
            for tensor in self.parameters_of(owner):
                tensor.grad = YES if on else NO
            return owner
        if name == "zero_grad":
            for tensor in self.parameters_of(owner):
                for storage in tensor.storages:
                    storage.has_grad = False
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
                self.store(owner.attrs, args[0].value, value)
            return NONE
        if name in ("append", "extend", "insert") and isinstance(owner.attrs.get("items"), Seq):
            items = owner.attrs["items"]
            assert isinstance(items, Seq)
            if name == "extend" and args:
                items.items += self.iterate(args[0], None)
            elif args:
                items.items.append(args[-1])
            return owner
        if name == "state_dict":
            return Dict({}, rest=self.detached_group(owner))
        if name in ("items", "values", "keys") and isinstance(owner.attrs.get("dict"), Dict):
            return self.builtin_method(owner.attrs["dict"], name, args, keywords, node)
        if name == "load_state_dict":
            with self.mode(False):
                for tensor in self.parameters_of(owner):
                    self.write(tensor, "copy_", node, shown="load_state_dict()")
            return unknown()
        if name == "reset_parameters":
            with self.mode(False):
                for tensor in self.parameters_of(owner):
                    self.write(tensor, "copy_", node, shown="reset_parameters()")
            return NONE
        if name == "register_forward_hook" and args:
            hooks = owner.attrs.setdefault("$hooks", Seq([]))
            if isinstance(hooks, Seq) and len(hooks.items) < 4:
                hooks.items.append(args[0])
            return unknown()
        if name == "flatten_parameters" or name.startswith("register_"):
            return unknown()
        if name == "forward":
            return self.module_call(owner, args, keywords, node)
        return None

    def detached_group(self, owner: Instance) -> Value:
        tensors = self.parameters_of(owner)
        made = Tensor(tuple(s for t in tensors for s in t.storages) or (Storage(),))
        made.name = "state_dict()"
        made.uncertain = len(made.storages) > 1
        return made


class Group(Tensor):
    """Each of several tensors: reads keep all of them, writes write all of them."""

    __slots__ = ("members",)

    def __init__(self, members: list[Tensor]) -> None:
        super().__init__(tuple(s for m in members for s in m.storages), max(m.grad for m in members))
        self.members = members

    def history(self) -> Any:
        for member in self.members:
            node = member.history()
            if node is not None:
                return node
        return self.node


_NOTHING = table.Op("", ("self",), {})
_MODULE_METHODS = frozenset(
    """
    parameters named_parameters modules children named_modules named_children buffers to cuda cpu train eval
    requires_grad_ zero_grad register_buffer register_parameter add_module state_dict load_state_dict apply half float
    double register_forward_hook register_full_backward_hook
    """.split()
)


def is_const(value: Value | None, wanted: Any) -> bool:
    return isinstance(value, Const) and value.value is wanted
