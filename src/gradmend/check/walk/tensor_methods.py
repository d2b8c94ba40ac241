"""Attributes and methods of tensors."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradmend.check import table, words
from gradmend.check.values import (
    MAYBE,
    NO,
    NONE,
    YES,
    Bound,
    Const,
    Ext,
    Group,
    Instance,
    Number,
    Opaque,
    Seq,
    Tensor,
    Value,
    unknown,
)
from gradmend.check.walk.operators import BINARY
from gradmend.check.walk.sparse import COALESCED, CSR, LAYOUTS, VALUES

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker

_SIZES = frozenset(
    "size dim numel item tolist shape stride element_size nelement get_device is_contiguous is_floating_point data_ptr "
    "storage_offset ndimension __len__ is_complex is_sparse qscheme storage untyped_storage".split()
)
_NUMBERS = frozenset(
    "size dim numel item stride element_size nelement ndimension __len__ data_ptr storage_offset".split()
)
_SAME = frozenset("to cuda cpu pin_memory xpu mps npu requires_grad_ to_device".split())
_COPIES = frozenset("float double half bfloat16 type type_as long int bool byte short clone".split())
_VIEWS = frozenset("T mT H mH real imag".split())
_DISTINCT = frozenset(
    """
    unsqueeze permute transpose sigmoid tanh softmax log_softmax relu exp masked_fill detach clone contiguous backward
    expand expand_as view_as flatten chunk unbind squeeze scatter scatter_add gather index_select masked_select logsumexp
    cumsum cumprod repeat_interleave bmm matmul requires_grad_ narrow unfold sqrt rsqrt sin cos clamp numpy
    """.split()
)
_KNOWN = frozenset(
    """
    backward numpy item tolist size dim to cuda cpu float double half long int bool detach clone contiguous reshape flatten
    register_hook retain_grad values indices type chunk split unbind
    """.split()
)


class TensorMethods:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def looks_like_tensor(self, owner: Opaque, name: str) -> bool:
        if name in _DISTINCT:
            return True
        if owner.tensor is not None:
            return table.is_inplace(name) or table.op(name) is not None or name in _COPIES
        return table.is_inplace(name) and name not in ("set_", "put_", "random_", "apply_", "map_")

    def tensor_attribute(self, tensor: Tensor, name: str, node: ast.AST) -> Value:
        if tensor.attrs is not None and name in tensor.attrs:
            return tensor.attrs[name]
        if name == "data":
            made = self.behind(tensor, ".data")
            return made
        if name == "grad":
            if tensor.leaf or tensor.param or tensor.grad:
                if tensor.sparse in LAYOUTS and not tensor.leaf:
                    self.walk.told(
                        words.refused(
                            "GM303",
                            self.walk.at(node),
                            ".grad of a sparse result is dense, or None",
                            "warning",
                        )
                    )
                return self.walk.gradients.read(tensor, node)
            return unknown("grad")
        if name in _VIEWS:
            return self.walk.tensors.look(tensor, node, name.lower())
        if name == "requires_grad":
            grad = self.walk.tensors.grad_of(tensor)
            return (
                Const(True)
                if grad == YES and not tensor.opaque
                else Const(False)
                if grad == NO and not tensor.opaque
                else unknown(name)
            )
        if name == "shape":
            return Seq([], "tuple", rest=Number())
        if name == "ndim":
            return Number()
        if name == "grad_fn" and not tensor.opaque and not tensor.uncertain:
            node_of = self.walk.tensors.node_of(tensor)
            if tensor.grad == YES and not tensor.leaf and node_of is not None and node_of.sure:
                return Instance(None, "object")
        if name in (
            "dtype",
            "device",
            "is_leaf",
            "grad_fn",
            "layout",
            "is_cuda",
            "is_sparse",
            "names",
            "_version",
        ):
            return unknown(name)
        if (
            tensor.opaque
            and table.op(name) is None
            and not table.is_inplace(name)
            and name not in _DISTINCT
            and name not in _KNOWN
        ):
            made_unknown = unknown(name)
            tensor.attrs = {**(tensor.attrs or {}), name: made_unknown}
            return made_unknown
        return Bound(tensor, name)

    def behind(self, tensor: Tensor, how: str) -> Tensor:
        """The same memory without history: .data, .numpy()."""
        made = Tensor(tensor.storages)
        made.quiet, made.name, made.opaque = how, tensor.name, tensor.opaque
        made.edited = tensor.edited if isinstance(tensor.edited, Tensor) else tensor
        made.uncertain = tensor.uncertain
        if tensor.turns is not None:
            made.turns, made.origin = tensor.turns, tensor.origin
        return made

    def set_tensor_attribute(self, tensor: Tensor, name: str, value: Value, node: ast.AST) -> bool:
        if name == "data":
            site = self.walk.statement or node
            self.walk.writes.write(tensor, "set_", site, how="swap", shown=".data =", name=tensor.name)
            return True
        if name == "requires_grad":
            on = isinstance(value, Const) and value.value is True
            members = tensor.members if isinstance(tensor, Group) else [tensor]
            for each in (tensor, *members):
                if isinstance(value, Const) and not on:
                    self.walk.refusals.flag_of_computed(each, node)
                each.grad = YES if on else NO if isinstance(value, Const) else MAYBE
            return True
        tensor.attrs = {**(tensor.attrs or {}), name: value}
        if name == "grad":
            for storage in tensor.storages:
                storage.grad = None
                storage.has_grad = not (isinstance(value, Const) and value.value is None)
        return True

    def tensor_method(
        self, tensor: Tensor, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if tensor.attrs is not None and name in tensor.attrs and not isinstance(tensor.attrs[name], Opaque):
            return self.walk.calls.call_value(tensor.attrs[name], args, keywords, node)
        if tensor.sparse in LAYOUTS:
            self.walk.sparse.refuse(tensor, name, args, keywords, node)
            return self.walk.sparse.result(tensor, name, self._method(tensor, name, args, keywords, node))
        return self._method(tensor, name, args, keywords, node)

    def _method(
        self, tensor: Tensor, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if name == "backward":
            self.walk.backward.backward([tensor], node, keywords)
            return NONE
        if name == "size" and not args and not keywords:
            return Seq([], "tuple", rest=Number())
        if name in _NUMBERS:
            return Number()
        if name in _SIZES:
            return unknown(name)
        if name == "detach":
            made = Tensor(tensor.storages)
            made.inference = tensor.inference
            made.name, made.opaque, made.quiet, made.uncertain = (
                tensor.name,
                tensor.opaque,
                tensor.quiet,
                tensor.uncertain,
            )
            made.origin = self.walk.at(node)
            made.edited = tensor if tensor.grad else None
            if tensor.turns is not None:
                made.turns, made.origin = tensor.turns, tensor.origin
            return made
        if name == "requires_grad_":
            on = not (args and isinstance(args[0], Const) and args[0].value is False)
            for each in (tensor, *(tensor.members if isinstance(tensor, Group) else ())):
                if not on:
                    self.walk.refusals.flag_of_computed(each, node)
                each.grad = YES if on else NO
                if on and each.node is None:
                    each.leaf = True
                    each.origin = each.origin or self.walk.at(node)
            return tensor
        if name in ("numpy", "__array__"):
            return self.walk.arrays.array_of(self.behind(tensor, "numpy"))
        if name == "register_hook" and args:
            self.walk.backward.hook(args[0], node)
            return unknown()
        if name in _SAME:
            if name == "to" and any(_is_dtype(a) for a in (*args, *keywords.values())):
                return self.walk.tensors.apply("clone", node, {"self": tensor}, shown=name)
            return tensor
        if name in ("long", "int", "bool", "byte", "short"):
            return self.walk.tensors.fresh(node)
        if name in _COPIES:
            return self.walk.tensors.apply("clone", node, {"self": tensor}, shown=name)
        if name == "contiguous":
            made = self.walk.tensors.look(tensor, node, name)
            made.uncertain = True
            return made
        if name in ("reshape", "flatten", "reshape_as"):
            made = self.walk.tensors.look(tensor, node, name)
            made.uncertain = tensor.base is not None  # of a transposed one it is a copy
            return made
        if name == "detach_":
            self.walk.refusals.refusals(tensor, "detach_", node, [], "detach_()")
            if tensor.base is None:
                self.walk.writes.detached(tensor, node)
                tensor.node, tensor.grad, tensor.leaf = None, NO, True
            return tensor
        if name in ("to_sparse", "to_sparse_coo", "to_sparse_csr"):
            made_sparse = self.walk.tensors.apply("clone", node, {"self": tensor}, shown=name)
            if isinstance(made_sparse, Tensor):
                made_sparse.sparse = CSR if name.endswith("csr") else COALESCED
                self.walk.sparse.born(made_sparse)
            return made_sparse
        if name == "values" and tensor.sparse:
            made = self.walk.tensors.look(tensor, node, "values")
            made.sparse = VALUES
            return made
        if table.is_inplace(name):
            return self.in_place(tensor, name, args, keywords, node)
        if name.startswith("__") and len(args) == 1 and not keywords:
            plain = name.strip("_").replace("truediv", "div")
            if plain in BINARY.values():
                return self.walk.expressions.arithmetic(plain, tensor, args[0], node)
            if plain[:1] == "r" and plain[1:] in BINARY.values():
                return self.walk.expressions.arithmetic(plain[1:], args[0], tensor, node)
        if name in ("retain_grad", "share_memory_", "rename_", "__enter__", "__exit__"):
            return tensor
        if (
            tensor.quiet
            and name not in table.MANY | table.SLICES
            and not (table.op(name) or table.NOTHING).view
        ):
            return self.walk.tensors.fresh(node)
        return self.walk.ops.op(name, [tensor, *args], keywords, node, method=True)

    def in_place(
        self,
        tensor: Value,
        name: str,
        args: list[Value],
        keywords: dict[str, Value],
        node: ast.AST,
        shown: str = "",
    ) -> Value:
        if name in table.METADATA_WRITES:
            self.walk.refusals.resized(tensor, name, node)
            return tensor
        if name in ("leaky_relu_", "rrelu_"):
            self.walk.refusals.negative_slope(tensor, args, keywords, node)
        info = table.op(name) or table.op(name[:-1])
        slots: dict[str, Value] = {}
        names = list(info.args[1:]) if info is not None else []
        for i, value in enumerate(args):
            slots[names[i] if i < len(names) else f"arg{i}"] = value
        slots.update(keywords)
        return self.walk.writes.write(tensor, name, node, slots, shown=shown or f"{name}()")


def _is_dtype(value: Value) -> bool:
    if not isinstance(value, Ext):
        return False
    return value.name.rpartition(".")[2] in (
        "float32 float64 float16 bfloat16 half double float int32 int64 long int bool uint8 int8 int16 complex64".split()
    )
