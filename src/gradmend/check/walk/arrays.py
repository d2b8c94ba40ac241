"""numpy: arrays that share a tensor's memory."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradmend.check.values import NONE, Instance, Storage, Tensor, Value

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker


class Arrays:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def is_array(self, value: Value) -> bool:
        return isinstance(value, Instance) and value.nn == "ndarray"

    def numpy_result(self) -> Value:

        made = Instance(None, "ndarray")
        tensor = Tensor((Storage(kind="numpy"),))
        tensor.quiet = "numpy"
        made.attrs["memory"] = tensor
        return made

    def array_of(self, tensor: Tensor) -> Instance:
        made = Instance(None, "ndarray")
        tensor.quiet = "numpy"
        made.attrs["memory"] = tensor
        return made

    def from_array(self, array: Value, node: ast.AST) -> Tensor:
        if isinstance(array, Instance) and array.nn == "ndarray":
            memory = array.attrs["memory"]
            assert isinstance(memory, Tensor)
            made = Tensor(memory.storages)
            made.origin = self.walk.at(node)
            return made
        return self.walk.tensors.fresh(node)

    def by_capsule(self, value: Value, node: ast.AST) -> Value:
        """Through DLPack: the same memory, and a version counter of its own."""
        if isinstance(value, Tensor) and not value.opaque:
            return self.walk.tensor_methods.behind(value, "dlpack")
        return self.from_array(value, node)

    def array_method(self, owner: Instance, name: str, args: list[Value], node: ast.AST) -> Value:
        if name in ("fill", "sort", "partition", "put", "itemset", "resize"):
            self.walk.writes.write(owner.attrs["memory"], "fill_", node, shown=f".{name}()")
            return NONE
        if name in ("reshape", "ravel", "view", "squeeze", "transpose", "swapaxes"):
            return owner
        return self.numpy_result()

    def numpy(self, last: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        first = args[0] if args else None
        out = keywords.get("out")
        if isinstance(out, Instance) and out.nn == "ndarray":
            self.walk.writes.write(out.attrs["memory"], "copy_", node, shown=f"np.{last}(out=)")
            return out
        if (
            last in ("copyto", "put", "place", "putmask", "fill_diagonal")
            and isinstance(first, Instance)
            and first.nn == "ndarray"
        ):
            self.walk.writes.write(first.attrs["memory"], "copy_", node, shown=f"np.{last}()")
            return NONE
        if last in ("asarray", "ravel", "reshape", "squeeze", "atleast_1d", "ascontiguousarray"):
            if isinstance(first, Instance) and first.nn == "ndarray":
                return first
            if isinstance(first, Tensor):
                return self.array_of(self.walk.tensor_methods.behind(first, "numpy"))
        return self.numpy_result()
