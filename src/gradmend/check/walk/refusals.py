"""Writes that PyTorch refuses on the spot."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradmend.check import words
from gradmend.check.fixes import no_grad_around
from gradmend.check.values import NO, YES, Path, Tensor
from gradmend.check.walk.targets import target_name

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker


class Refusals:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def refusals(
        self, tensor: Tensor, op: str, site: ast.AST, others: list[tuple[Path, Tensor]], shown: str
    ) -> None:
        """Writes that PyTorch refuses on the spot."""
        if self.walk.grad_mode is not True or self.walk.healed:
            return
        grad = self.walk.tensors.grad_of(tensor)
        others_grad = max((self.walk.tensors.grad_of(t) for _, t in others), default=NO)
        root = tensor
        doubt = tensor.uncertain
        while root.base is not None:
            root = root.base
            doubt = doubt or root.uncertain
        if doubt:
            return
        place = self.walk.at(site)
        name = f"`{target_name(site) or tensor.name}`" if target_name(site) or tensor.name else "it"
        if op == "detach_":
            if tensor.base is not None and grad == YES:
                self.walk.told(
                    words.refused("GM126", place, f"detach_() on {name}, a view: PyTorch refuses it", "error")
                )
            return
        if (
            root.leaf and root.grad == YES and not root.opaque and not root.uncertain and root.node is None
        ) or _leaf_node(root):
            of = "a view of a leaf" if tensor.base is not None else "a leaf"
            self.walk.told(
                words.refused(
                    "GM121",
                    place,
                    f"{shown} changes {name}, {of} that requires grad, in grad mode: PyTorch refuses it",
                    "error",
                    (
                        (("the leaf is made here", root.origin),)
                        if root.origin is not None and root.origin != place
                        else ()
                    ),
                    no_grad_around(self.walk.statement, self.walk.at(self.walk.statement))
                    if self.walk.statement is not None
                    else None,
                )
            )
        elif tensor.many and max(grad, others_grad) == YES:
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
        if tensor.sparse == "values" and grad == YES:
            self.walk.told(
                words.refused(
                    "GM302",
                    place,
                    f"{shown} changes the values of a sparse tensor in place: no gradient sees it",
                    "warning",
                )
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
