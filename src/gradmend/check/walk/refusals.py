"""Writes that PyTorch refuses on the spot."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradmend.check import words
from gradmend.check.findings import Severity, StaticFix
from gradmend.check.fixes import clone_first, no_grad_around
from gradmend.check.values import NO, YES, Const, Path, Tensor, Value
from gradmend.check.walk.sparse import VALUES
from gradmend.check.walk.targets import plain_target, target_name

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker


class Refusals:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def refusals(
        self, tensor: Tensor, op: str, site: ast.AST, others: list[tuple[Path, Tensor]], shown: str
    ) -> bool:
        """Writes that PyTorch refuses on the spot. True: a leaf, which stays as it is."""
        self._inference(tensor, site, shown)
        if self.walk.grad_mode is not True or self.walk.healed:
            return False
        grad = self.walk.tensors.grad_of(tensor)
        others_grad = max((self.walk.tensors.grad_of(t) for _, t in others), default=NO)
        root = tensor
        doubt = tensor.uncertain
        while root.base is not None:
            root = root.base
            doubt = doubt or root.uncertain
        if doubt:
            return False
        place = self.walk.at(site)
        name = f"`{target_name(site) or tensor.name}`" if target_name(site) or tensor.name else "it"
        if op == "detach_":
            if tensor.base is not None and grad == YES:
                self.walk.told(
                    words.refused("GM126", place, f"detach_() on {name}, a view: PyTorch refuses it", "error")
                )
            return False
        if (
            root.leaf and root.grad == YES and not root.opaque and not root.uncertain and root.node is None
        ) or _leaf_node(root):
            of = "a view of a leaf" if tensor.base is not None else "a leaf"
            self.walk.told(
                words.refused(
                    "GM121",
                    place,
                    f"{shown} changes {name}, {of} that requires grad, in grad mode: PyTorch refuses it",
                    "warning" if self.walk.unseen else "error",
                    (
                        (("the leaf is made here", root.origin),)
                        if root.origin is not None and root.origin != place
                        else ()
                    ),
                    self._mended(others_grad == YES),
                    words.NEW_TENSOR if others_grad == YES else "",
                )
            )
            return True
        if tensor.many and max(grad, others_grad) == YES:
            self.walk.told(
                words.refused(
                    "GM122",
                    place,
                    f"{shown} changes {name}, one of several views that one call returned: PyTorch refuses it",
                    "error" if grad == YES and not tensor.uncertain else "warning",
                    ((("the views are made here", tensor.origin),) if tensor.origin is not None else ()),
                )
            )
        elif tensor.view_no_grad and tensor.base is not None:
            self.walk.told(
                words.refused(
                    "GM123",
                    place,
                    f"{shown} changes {name}, a view made under no_grad, in grad mode: PyTorch refuses it",
                    "error",
                )
            )
        elif tensor.expanded and not tensor.opaque and op != "setitem":
            self.walk.told(
                words.refused(
                    "GM124",
                    place,
                    f"{shown} changes {name}, an expanded tensor whose entries share memory: PyTorch refuses it",
                    "warning",
                )
            )
        if tensor.function_view and grad == YES:
            self.walk.told(
                words.refused(
                    "GM127",
                    place,
                    f"{shown} changes {name}, which {tensor.of_function} gave out as a view of its input: PyTorch refuses it",
                    "error",
                )
            )
        if tensor.sparse == VALUES and grad == YES:
            self.walk.told(
                words.refused(
                    "GM302",
                    place,
                    f"{shown} changes the values of a sparse tensor in place: no gradient sees it",
                    "warning",
                )
            )
        return False

    def _mended(self, has_gradient: bool) -> StaticFix | None:
        """`has_gradient`: what is written has one, and no_grad would cut it."""
        statement = self.walk.statement
        if statement is None:
            return None
        place = self.walk.at(statement)
        if not has_gradient:
            return no_grad_around(statement, place)
        target = plain_target(statement)
        return clone_first(statement, target, place, safe=False) if target is not None else None

    def _inference(self, tensor: Tensor, site: ast.AST, shown: str) -> None:
        if tensor.inference and not self.walk.inference and not tensor.uncertain:
            what = f"{shown} changes a tensor that was made under inference_mode, outside of it: PyTorch refuses it"
            severity: Severity = "warning" if tensor.opaque else "error"
            self.walk.told(words.refused("GM128", self.walk.at(site), what, severity))

    def resized(self, value: Value, op: str, site: ast.AST) -> None:
        if op not in ("resize_", "resize_as_") or self.walk.grad_mode is not True:
            return
        for _, tensor in self.walk.tensors_in(value, deep=0):
            if self.walk.tensors.grad_of(tensor) == YES and not tensor.opaque and not tensor.uncertain:
                what = f"{op}() on a tensor that requires grad: PyTorch refuses it"
                self.walk.told(words.refused("GM130", self.walk.at(site), what, "error"))

    def flag_of_computed(self, tensor: Tensor, site: ast.AST) -> None:
        """requires_grad = False on what an op has computed."""
        node = self.walk.tensors.node_of(tensor) if tensor.grad == YES else None
        if node is None or node.leaf is not None or not node.sure or tensor.opaque or tensor.uncertain:
            return
        what = "requires_grad can't be taken from a tensor that was computed: PyTorch refuses it"
        self.walk.told(words.refused("GM130", self.walk.at(site), what, "error"))

    def negative_slope(
        self, value: Value, args: list[Value], keywords: dict[str, Value], site: ast.AST
    ) -> None:
        """leaky_relu in place: backward goes by the sign of the result."""
        slope = args[0] if args else keywords.get("negative_slope", keywords.get("lower"))
        if not (isinstance(slope, Const) and isinstance(slope.value, (int, float)) and slope.value < 0):
            return
        for _, tensor in self.walk.tensors_in(value, deep=0):
            grad = self.walk.tensors.strongest([((), tensor)])
            if grad and not self.walk.healed:
                what = "leaky_relu in place with a negative slope: its backward can't tell the sides apart, and PyTorch refuses it"
                self.walk.told(
                    words.refused("GM135", self.walk.at(site), what, "error" if grad == YES else "warning")
                )


def _leaf_node(tensor: Tensor) -> bool:
    return (
        tensor.node is not None
        and tensor.node.leaf is tensor
        and tensor.grad == YES
        and not tensor.opaque
        and not tensor.uncertain
        and not tensor.quiet
    )
