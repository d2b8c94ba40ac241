"""torch.nn by its dotted names: functional, init, utils."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradmend.check import table
from gradmend.check.values import MAYBE, NO, NONE, YES, Const, Tensor, Value, is_const, unknown
from gradmend.check.walk.flags import FUNCTIONS

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker


class Functional:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def nn(self, parts: list[str], args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        last = parts[-1]
        if parts[0] == "functional":
            return self._functional(last, args, keywords, node)
        if parts[0] == "init":
            if args and last.endswith("_"):
                with self.walk.mode(False):
                    return self.walk.writes.write(args[0], "copy_", node, shown=f"init.{last}()")
            return unknown()
        if last in ("Parameter", "Buffer", "UninitializedParameter"):
            wants = keywords.get("requires_grad", args[1] if len(args) > 1 else None)
            grad = NO if isinstance(wants, Const) and wants.value is False else YES
            if wants is not None and not isinstance(wants, Const):
                grad = MAYBE
            if last == "Buffer":
                return args[0] if args else unknown()
            made = self.walk.modules.parameter("", grad, node)
            first = args[0] if args else keywords.get("data")
            if isinstance(first, Tensor) and len(first.storages) == 1:
                made.storages = first.storages  # a Parameter shares its data's memory
                made.storages[0].kind = "param"
                made.sparse = first.sparse
            return made
        if parts[0] == "utils":
            if last == "parameters_to_vector":
                return self.walk.tensors.apply("cat", node, {"tensors": args[0]} if args else {}, shown=last)
            if last == "vector_to_parameters" and len(args) > 1:
                with self.walk.mode(False):
                    return self.walk.writes.write(args[1], "copy_", node, shown=last, how="swap")
            if last in ("weight_norm", "spectral_norm", "remove_weight_norm") and args:
                return args[0]
            return unknown()
        return self.walk.modules.make_module(f"torch.nn.{last}", args, keywords, node)

    def _functional(self, last: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        inplace = keywords.get("inplace")
        if inplace is None and len(args) > FUNCTIONS.get(last, len(args)):
            inplace = args[FUNCTIONS[last]]
        if "dropout" in last and args:
            training = args[2] if len(args) > 2 else keywords.get("training", Const("alpha" not in last))
            if is_const(training, False):
                return args[0]  # it hands on what it was given
        if (
            args
            and last in ("leaky_relu", "leaky_relu_")
            and (last[-1] == "_" or self.walk.questions.truthy(inplace or NONE))
        ):
            self.walk.refusals.negative_slope(args[0], args[1:2], keywords, node)
        if args and inplace is not None and self.walk.questions.truthy(inplace) is True:
            return self.walk.writes.write(
                args[0],
                f"{last}_" if "dropout" not in last else "mul_",
                node,
                shown=f"{last}(inplace=True)",
                flag=True,
            )
        if last.endswith("_") and args and table.is_inplace(last):
            return self.walk.writes.write(args[0], last, node, shown=f"{last}()")
        x = args[0] if args else keywords.get("input", unknown())

        def nth(i: int, key: str) -> Value:
            return args[i] if len(args) > i else keywords.get(key, NONE)

        if last == "linear":
            return self.walk.layers.linear(x, nth(1, "weight"), nth(2, "bias"), node)
        if last == "embedding":
            return self.walk.layers.embedding(x, nth(1, "weight"), nth(3, "max_norm"), node)
        if last in ("batch_norm", "instance_norm"):
            return self.walk.layers.batch_norm(x, nth(3, "weight"), nth(4, "bias"), node, last)
        if last in ("layer_norm", "group_norm", "rms_norm"):
            return self.walk.layers.norm(x, nth(2, "weight"), nth(3, "bias"), node, last)
        if last.startswith("conv") and last[-1] == "d":
            return self.walk.tensors.apply(
                "conv2d", node, {"input": x, "weight": nth(1, "weight"), "bias": nth(2, "bias")}, shown=last
            )
        if "dropout" in last:
            return self.walk.tensors.apply("dropout", node, {"input": x}, shown=last)
        if last == "one_hot":
            return self.walk.tensors.fresh(node)
        if last.endswith("_with_indices"):
            last, keywords = last.removesuffix("_with_indices"), {**keywords, "return_indices": Const(True)}
        if last.endswith(("pool2d", "pool1d", "pool3d")) and "unpool" not in last:
            result = self.walk.tensors.apply(
                "max_pool2d" if "max" in last else "avg_pool2d", node, {"self": x, "input": x}, shown=last
            )
            return self.walk.layers.pooled(result, keywords.get("return_indices", NONE), node)
        clean = {k: v for k, v in keywords.items() if k != "inplace"}
        if not args and "input" in clean:
            args = [clean.pop("input")]
        return self.walk.ops.op(last, args, clean, node)
