"""torch.nn: what a call of a layer does."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from gradmend.check import table
from gradmend.check.values import (
    MAYBE,
    NONE,
    YES,
    Const,
    Instance,
    Path,
    Seq,
    Tensor,
    Value,
    is_const,
    unknown,
)
from gradmend.check.walk.kinds import BATCH_NORM, CONV, LOSS, RECURRENT, SAME, snake

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker


class Layers:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def module_call(
        self, owner: Instance, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        name = owner.nn
        x = args[0] if args else next(iter(keywords.values()), None)
        if name == "Sequential" or (name == "" and "items" in owner.attrs):
            value = x or unknown()
            for item in self.walk.modules.module_items(owner) or []:
                value = self.walk.calls.call_value(item, [value], {}, node)
            return value
        if name == "Identity":
            return x or unknown()
        if name in SAME:
            inner = owner.attrs.get("module")
            return self.walk.calls.call_value(inner, args, keywords, node) if inner is not None else unknown()
        if x is None:
            return self.walk.calls.unknown_call(None, args, keywords, node)
        weight = owner.attrs.get("weight", NONE)
        bias = owner.attrs.get("bias", NONE)
        if name in ("Linear", "LazyLinear"):
            return self.linear(x, weight, bias, node)
        if name == "Bilinear" and len(args) > 1:
            return self.walk.tensors.apply(
                "bilinear", node, {"input1": args[0], "input2": args[1], "weight": weight, "bias": bias}
            )
        if CONV.match(name):
            return self.walk.tensors.apply(
                "conv2d", node, {"input": x, "weight": weight, "bias": bias}, shown=snake(name)
            )
        if name.startswith("Embedding"):
            return self.embedding(x, weight, owner.attrs.get("max_norm", NONE), node)
        if BATCH_NORM.match(name):
            return self._normalised(owner, x, weight, bias, node)
        if name in ("LayerNorm", "GroupNorm", "RMSNorm"):
            return self.norm(x, weight, bias, node, snake(name))
        if name == "PReLU":
            return self.walk.tensors.apply("prelu", node, {"self": x, "weight": weight}, shown="prelu")
        if RECURRENT.match(name):
            return self.recurrent(owner, args, keywords, node)
        if name in LOSS:
            target = args[1] if len(args) > 1 else keywords.get("target", NONE)
            return self.loss(LOSS[name], x, target, node)
        if "Dropout" in name and (
            is_const(owner.attrs.get("training"), False)
            # Of a class that is only tried, a default of 0 says little.
            or (isinstance(chance := owner.attrs.get("p"), Const) and not chance.value and not owner.stray)
        ):
            return x  # it hands on what it was given
        function = re.sub(r"_?\dd$", "", snake(name)) if table.op(snake(name)) is None else snake(name)
        inplace = owner.attrs.get("inplace") if "AlphaDropout" not in name else None  # they ignore it
        if table.op(function) is not None:
            if inplace is not None and self.walk.questions.truthy(inplace) is True:
                if name == "LeakyReLU":
                    slope = {"negative_slope": owner.attrs.get("negative_slope", NONE)}
                    self.walk.refusals.negative_slope(x, [], slope, node)
                return self.walk.writes.write(
                    x, f"{function}_", node, shown=f"{name}(inplace=True)", flag=True, by=owner
                )
            if (
                inplace is not None
                and self.walk.questions.truthy(inplace) is None
                and not is_const(inplace, False)
            ):
                pass
            first = (table.op(function) or table.NOTHING).args[0]
            slots = {first: x}
            second = (table.op(function) or table.NOTHING).args[1:2]
            if len(args) > 1 and second:
                slots[second[0]] = args[1]
            result = self.walk.tensors.apply(function, node, slots, shown=function)
            return self.pooled(result, owner.attrs.get("return_indices", NONE), node)
        if name.startswith("Dropout") or name.endswith("Dropout"):
            if inplace is not None and self.walk.questions.truthy(inplace) is True:
                return self.walk.writes.write(
                    x, "mul_", node, shown=f"{name}(inplace=True)", flag=True, by=owner
                )
            return self.walk.tensors.apply("dropout", node, {"input": x}, shown="dropout")
        return self.generic_module(owner, args, keywords, node)

    def pooled(self, result: Value, indices: Value, node: ast.AST) -> Value:
        """What a pool gives: with return_indices, where it found the values too."""
        if self.walk.questions.truthy(indices) is True:
            where = self.walk.tensors.fresh(node)
            for path, tensor in self.walk.tensors_in(result):
                if tensor.node is not None:
                    op, sure = tensor.node.op, tensor.grad == YES
                    self.walk.tensors.save(path, where, tensor.node, node, op, "indices", sure)
            return Seq([result, where], "tuple")
        return result

    def generic_module(
        self, owner: Instance, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        found = [pair for value in (*args, *keywords.values()) for pair in self.walk.tensors_in(value)]
        weights = owner.attrs.get("$weights")
        if isinstance(weights, Tensor):
            found.append(((), weights))
        grad = self.walk.tensors.strongest(found)
        result = self.walk.tensors.fresh(node)
        result.opaque = True
        if grad:
            made = self.walk.tensors.record(snake(owner.nn) or "call", found, node)
            self.walk.tensors.holds(made)
            made.sure = False
            result.node, result.grad, result.leaf = made, min(grad, MAYBE), False
            if isinstance(weights, Tensor):
                self.walk.tensors.save((), weights, made, node, snake(owner.nn), "weight", False)
            if owner.nn in ("MultiheadAttention", "TransformerEncoderLayer"):
                # With batch_first it may multiply a copy.
                for path, tensor in self.walk.tensors_in(Seq(args[:3])):
                    self.walk.tensors.save(path, tensor, made, node, snake(owner.nn), "input", False)
        return result

    def linear(self, x: Value, weight: Value, bias: Value, node: ast.AST) -> Value:
        # It multiplies by a transposed view of the weight: that view is what is kept.
        slots = {
            "input": x,
            "weight": self.walk.tensors.view(weight, "one", node, "t")
            if not isinstance(weight, Const)
            else weight,
        }
        if not isinstance(bias, Const):
            slots["bias"] = bias
        return self.walk.tensors.apply("linear", node, slots, shown="linear")

    def embedding(self, ids: Value, weight: Value, max_norm: Value, node: ast.AST) -> Value:
        if isinstance(max_norm, Const) and max_norm.value is not None:
            with self.walk.mode(False):
                self.walk.writes.write(
                    weight, "renorm_", node, shown="the lookup with max_norm", name="weight"
                )
        return self.walk.tensors.apply(
            "embedding", node, {"weight": weight, "indices": ids}, shown="embedding"
        )

    def batch_norm(self, x: Value, weight: Value, bias: Value, node: ast.AST, shown: str) -> Value:
        slots = {"self": x, "mat2": weight} if not isinstance(weight, Const) else {"self": x}
        return self._kept_pair(x, weight, bias, node, shown, slots)

    def _normalised(self, owner: Instance, x: Value, weight: Value, bias: Value, node: ast.AST) -> Value:
        """BatchNorm as a layer: in eval mode backward reads the running statistics, in train mode the pass changes them."""
        shown = snake(owner.nn)
        result = self.batch_norm(x, weight, bias, node, shown)
        stats = [
            s for s in (owner.attrs.get("running_mean"), owner.attrs.get("running_var")) if s is not None
        ]
        if is_const(owner.attrs.get("training"), False):
            if isinstance(result, Tensor) and result.node is not None:
                for _, tensor in self.walk.tensors_in(Seq(stats)):
                    sure = result.grad == YES
                    self.walk.tensors.save((), tensor, result.node, node, shown, "running", sure)
        else:
            with self.walk.mode(False):
                self.walk.writes.write(Seq(stats), "copy_", node, shown=shown, how="stats")
        return result

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
        found = {
            "input": self.walk.tensors_in(x),
            "weight": self.walk.tensors_in(weight),
            "bias": self.walk.tensors_in(bias),
        }
        everything = [pair for pairs in found.values() for pair in pairs]
        grad = self.walk.tensors.strongest(everything)
        result = self.walk.tensors.fresh(node)
        if grad:
            made = self.walk.tensors.record(shown, everything, node)
            made.sure = grad == YES
            result.node, result.grad, result.leaf = made, grad, False
            self.walk.tensors.keep(info, made, node, found, result, shown)
        return result

    def loss(self, function: str, x: Value, target: Value, node: ast.AST) -> Value:
        first = (table.op(function) or table.NOTHING).args[0]
        return self.walk.tensors.apply(function, node, {first: x, "target": target}, shown=function)

    def recurrent(
        self, owner: Instance, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        x = args[0] if args else keywords.get("input", unknown())
        state = args[1] if len(args) > 1 else keywords.get("hx", NONE)
        weights = [v for v in owner.attrs.values() if isinstance(v, Tensor) and v.param]
        found: dict[str, list[tuple[Path, Tensor]]] = {
            "input": self.walk.tensors_in(x),
            "hx": self.walk.tensors_in(state),
        }
        found["weight"] = [((), w) for w in weights]
        everything = [pair for pairs in found.values() for pair in pairs]
        grad = self.walk.tensors.strongest(everything)
        shown = snake(owner.nn)
        made = self.walk.tensors.record(shown, everything, node)
        made.sure = grad == YES
        if grad:
            readers = ("input", "hx", "weight")
            self.walk.tensors.keep(
                table.Op(shown, readers, dict.fromkeys(readers, readers)), made, node, found, None, shown
            )

        def result() -> Tensor:
            tensor = self.walk.tensors.fresh(node)
            if grad:
                tensor.node, tensor.grad, tensor.leaf = made, grad, False
            return tensor

        if owner.nn == "LSTMCell":
            return Seq([result(), result()], "tuple")
        if owner.nn.endswith("Cell"):
            tensor = result()
            if owner.nn == "RNNCell" and grad:
                self.walk.tensors.save((), tensor, made, node, shown, "result", grad == YES)
            return tensor
        if owner.nn != "LSTM":
            return Seq([result(), result()], "tuple")
        output = result()
        if grad:  # by the kernels of most machines, not by all
            self.walk.tensors.save((), output, made, node, shown, "result", False)
        return Seq([output, Seq([result(), result()], "tuple")], "tuple")
