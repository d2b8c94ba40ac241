"""What lies in .grad: one tensor that every backward adds to, until it is dropped."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradmend.check import words
from gradmend.check.values import GradStorage, Path, Storage, Tensor, Value, is_const

if TYPE_CHECKING:
    from gradmend.check.findings import Place
    from gradmend.check.walk.walker import Walker


class Gradients:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def read(self, tensor: Tensor, node: ast.AST) -> Tensor:
        """`p.grad`: the accumulator itself, as it is now."""
        held: list[Storage] = []
        for storage in tensor.storages:
            if storage.grad is None:
                storage.grad = GradStorage(f"{tensor.name}.grad")
            held.append(storage.grad)
        made = Tensor(tuple(held))
        made.name = f"{tensor.name}.grad"
        made.origin = self.walk.at(node)
        made.turns = tuple(len(s.turns) for s in held if isinstance(s, GradStorage))
        return made

    def arrived(self, leaves: list[Tensor], place: Place, live: bool) -> None:
        """A backward reached these leaves. `live`: with create_graph=True it makes new gradients instead of adding in place."""
        for leaf in leaves:
            if leaf.attrs is not None and is_const(leaf.attrs.get("grad"), None):
                del leaf.attrs["grad"]
            for storage in leaf.storages:
                if storage.grad is not None:
                    if storage.has_grad and not live:
                        storage.grad.turns.append((place, self.walk.path))
                    else:
                        storage.grad = None
                storage.has_grad = True

    def dropped(self, tensors: list[Tensor], keep: Value | None, place: Place) -> None:
        """zero_grad(): the gradients are let go, or with set_to_none=False zeroed where they lie."""
        for tensor in tensors:
            for storage in tensor.storages:
                if not is_const(keep, False):
                    storage.has_grad = False
                    storage.grad = None
                elif storage.grad is not None:
                    storage.grad.turns.append((place, self.walk.path))

    def used(self, found: list[tuple[Path, Tensor]], site: ast.AST) -> None:
        """A reference to .grad that was taken before the last backward is read as if it were the gradient of then."""
        for _, tensor in found:
            if tensor.turns is None:
                continue
            for storage, then in zip(tensor.storages, tensor.turns, strict=False):
                if not isinstance(storage, GradStorage) or len(storage.turns) <= then:
                    continue
                place, path = storage.turns[then]
                if self.walk.on_path(path):
                    self.walk.told(
                        words.refused(
                            "GM212",
                            place,
                            words.kept_reference(
                                tensor.name or "grad", tensor.origin, self.walk.at(site), place
                            ),
                            "warning",
                            (("the reference is taken here", tensor.origin),) if tensor.origin else (),
                        )
                    )
                    break
