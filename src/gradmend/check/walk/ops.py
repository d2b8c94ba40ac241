"""torch's functions by name, and fresh tensors."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradmend.check import table, words
from gradmend.check.values import MAYBE, NO, YES, Const, Instance, Seq, Tensor, Value, unknown
from gradmend.check.walk.sparse import is_sparse

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker

_WITH_DIM = frozenset({"max", "min", "median", "nanmedian"})  # without, they give one tensor


class Ops:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def op(
        self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST, method: bool = False
    ) -> Value:
        out = keywords.pop("out", None) if "out" in keywords else None
        if out is not None and not (isinstance(out, Const) and out.value is None):
            return self.into(out, name, args, keywords, node)
        if name in table.FACTORIES and not method:
            return self.factory(name, args, keywords, node)
        if name in table.CONSTANT or name in table.FACTORIES:
            return self.walk.tensors.fresh(node)
        if name == "einsum":
            return self.all_kept(name, [a for a in args if not isinstance(a, Const)], node)
        if name == "where" and len(args) == 1:
            return Seq([self.walk.tensors.fresh(node), self.walk.tensors.fresh(node)], "tuple")
        info = table.op(name)
        if name in table.MANY or name in table.SLICES:
            kind = "many" if name in table.MANY else "slices"
            return self.walk.tensors.view(args[0], kind, node, name) if args else unknown()
        if name in table.UNSAFE and args:
            return Seq([], "tuple", self.walk.tensors.apply("clone", node, {"self": args[0]}, shown=name))
        if name == "linalg_matrix_norm" and (len(args) > 1 or "ord" in keywords):
            return self.walk.tensors.apply("sum", node, {"self": args[0]}, shown="matrix_norm")
        if name == "gumbel_softmax" and (len(args) > 2 or "hard" in keywords):
            return self.walk.tensors.apply("sum", node, {"self": args[0]}, shown=name)
        if info is None:
            if any(isinstance(a, Tensor) for a in args):
                return self.walk.calls.unknown_call(None, args, keywords, node)
            return unknown()
        if name in ("max", "min") and len(args) > 1 and not isinstance(args[1], Const):
            return self.walk.tensors.apply("maximum", node, {"self": args[0], "other": args[1]}, shown=name)
        slots: dict[str, Value] = {}
        # A method's own tensor is `self` wherever that stands: torch.polygamma(n, x), x.polygamma(n).
        order = sorted(info.args, key="self".__ne__) if method else info.args
        for i, value in enumerate(args):
            if i < len(order):
                slots[order[i]] = value
        for key, value in keywords.items():
            slots[info.args[0] if key == "input" else key] = value
        if not method and args and isinstance(args[0], Tensor) and is_sparse(args[0]):
            self.walk.sparse.refuse(args[0], name, args[1:], keywords, node)
        kinds = table.SEVERAL.get(name.removeprefix("linalg_"), "")
        if kinds and args and (len(args) > 1 or "dim" in keywords or name not in _WITH_DIM):
            return self._several(info, kinds, args[0], node)
        return self.walk.tensors.apply(name, node, slots)

    def _several(self, info: table.Op, kinds: str, given: Value, node: ast.AST) -> Value:
        """Values with their indices, a sign with a logarithm, ...: one op, several results."""
        shown = info.name.removeprefix("linalg_")
        first = self.walk.tensors.apply("sum", node, {"self": given}, shown=shown)
        if not isinstance(first, Tensor):
            return Seq([first, *(self.walk.tensors.fresh(node) for _ in kinds[1:])], "tuple")
        results = [first]
        for kind in kinds[1:]:
            other = self.walk.tensors.fresh(node)
            if kind != "i":
                other.node, other.grad, other.leaf = first.node, first.grad, first.leaf
                other.opaque, other.guessed = first.opaque, first.guessed
            results.append(other)
        if first.node is not None:
            self.walk.tensors.holds(first.node)
            found = {info.args[0]: self.walk.tensors_in(given)}
            if info.name not in _WITH_DIM:  # which keep what they were given in their other form
                self.walk.tensors.keep(info, first.node, node, found, None, shown)
            for kind, result in zip(kinds, results, strict=True):
                if kind != "g":
                    slot = "indices" if kind == "i" else "result"
                    self.walk.tensors.save((), result, first.node, node, shown, slot, first.grad == YES)
        return Seq(list(results), "tuple")

    def all_kept(self, name: str, args: list[Value], node: ast.AST) -> Value:
        """Products of several: each is kept for the others' sake."""
        found = {f"arg{i}": self.walk.tensors_in(a) for i, a in enumerate(args)}
        info = table.Op(name, tuple(found), {k: tuple(found) for k in found})
        everything = [pair for pairs in found.values() for pair in pairs]
        grad = self.walk.tensors.strongest(everything)
        result = self.walk.tensors.fresh(node)
        if grad:
            made = self.walk.tensors.record(name, everything, node)
            made.sure = grad == YES
            result.node, result.grad, result.leaf = made, grad, False
            self.walk.tensors.keep(info, made, node, found, result, name)
        return result

    def factory(self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Tensor:
        made = self.walk.tensors.fresh(node)
        wants = keywords.get("requires_grad")
        if isinstance(wants, Const) and wants.value is True:
            made.grad = YES
        elif wants is not None and not isinstance(wants, Const):
            made.grad = MAYBE
        if name == "as_tensor" and args:
            for option in (args[0],):
                if isinstance(option, Tensor):
                    return option
                if isinstance(option, Instance) and option.nn == "ndarray":
                    return self.walk.arrays.from_array(option, node)
        return made

    def into(
        self, out: Value, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        found = [pair for value in args for pair in self.walk.tensors_in(value)]
        if self.walk.grad_mode is True and not self.walk.healed:
            strength = max((self.walk.tensors.grad_of(t) for _, t in found), default=NO)
            target = max((self.walk.tensors.grad_of(t) for _, t in self.walk.tensors_in(out)), default=NO)
            if max(strength, target) == YES:
                self.walk.told(
                    words.refused(
                        "GM125",
                        self.walk.at(node),
                        f"{name}(..., out=...) with arguments that require grad: PyTorch refuses it",
                        "error",
                    )
                )
        with self.walk.mode(False):
            self.walk.writes.write(out, "copy_", node, shown=f"{name}(out=)")
        return out
