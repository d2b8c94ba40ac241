"""torch's own functions and the methods of tensors."""

from __future__ import annotations

import ast
from typing import Any

from gradmend.check import table, words
from gradmend.check.findings import Severity
from gradmend.check.ledger import leading_to
from gradmend.check.values import (
    MAYBE,
    NO,
    NONE,
    YES,
    Alt,
    Bound,
    Class,
    Const,
    Dict,
    Ext,
    Function,
    Instance,
    Node,
    Opaque,
    Seq,
    Storage,
    Tensor,
    Value,
    unknown,
)
from gradmend.check.walk.nn import Group
from gradmend.check.walk.optim import Optim

_PAIRS = frozenset(
    "max min sort topk median mode kthvalue cummax cummin svd qr eig eigh slogdet std_mean var_mean".split()
)
_SIZES = frozenset(
    "size dim numel item tolist shape stride element_size nelement get_device is_contiguous is_floating_point data_ptr "
    "storage_offset ndimension __len__ is_complex is_sparse qscheme storage untyped_storage".split()
)
_SAME = frozenset("to cuda cpu pin_memory xpu mps npu requires_grad_ to_device".split())
_COPIES = frozenset("float double half bfloat16 type type_as long int bool byte short clone".split())
_MANY = frozenset(
    "chunk split unbind tensor_split hsplit vsplit dsplit unsafe_chunk unsafe_split split_with_sizes".split()
)
_VIEWS = frozenset("T mT H mH real imag".split())
_DISTINCT = frozenset(
    """
    unsqueeze permute transpose sigmoid tanh softmax log_softmax relu exp masked_fill detach clone contiguous backward
    expand expand_as view_as flatten chunk unbind squeeze scatter scatter_add gather index_select masked_select logsumexp
    cumsum cumprod repeat_interleave bmm matmul requires_grad_ narrow unfold sqrt rsqrt sin cos clamp numpy
    """.split()
)
_OUTSIDE_GRAD = frozenset({"no_grad", "inference_mode"})


class TorchAPI(Optim):
    def looks_like_tensor(self, owner: Opaque, name: str) -> bool:
        if name in _DISTINCT:
            return True
        if owner.tensor is not None:
            return table.is_inplace(name) or table.op(name) is not None or name in _COPIES
        return table.is_inplace(name) and name not in ("set_", "put_", "random_", "apply_", "map_")

    # --- attributes of tensors

    def tensor_attribute(self, tensor: Tensor, name: str, node: ast.AST) -> Value:
        if tensor.attrs is not None and name in tensor.attrs:
            return tensor.attrs[name]
        if name == "data":
            made = self.behind(tensor, ".data")
            return made
        if name == "grad":
            if tensor.leaf or tensor.param or tensor.grad:
                made = Tensor((Storage(f"{tensor.name}.grad", "grad"),))
                made.name = f"{tensor.name}.grad"
                if tensor.sparse == "result":
                    self.told(
                        words.refused(
                            "GM303", self.at(node), ".grad of a sparse result is dense, or None", "warning"
                        )
                    )
                tensor.attrs = {**(tensor.attrs or {}), "grad": made}
                return made
            return unknown("grad")
        if name in _VIEWS:
            return self.look(tensor, node, name.lower())
        if name == "requires_grad":
            grad = self.grad_of(tensor)
            return (
                Const(True)
                if grad == YES and not tensor.opaque
                else Const(False)
                if grad == NO and not tensor.opaque
                else unknown(name)
            )
        if name in (
            "shape",
            "dtype",
            "device",
            "is_leaf",
            "grad_fn",
            "ndim",
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
        return made

    def set_tensor_attribute(self, tensor: Tensor, name: str, value: Value, node: ast.AST) -> bool:
        if name == "data":
            site = self.statement or node
            self.write(tensor, "set_", site, how="swap", shown=".data =", name=tensor.name)
            return True
        if name == "requires_grad":
            on = isinstance(value, Const) and value.value is True
            members = tensor.members if isinstance(tensor, Group) else [tensor]
            for each in (tensor, *members):
                each.grad = YES if on else NO if isinstance(value, Const) else MAYBE
            return True
        tensor.attrs = {**(tensor.attrs or {}), name: value}
        if name == "grad":
            for storage in tensor.storages:
                storage.has_grad = not (isinstance(value, Const) and value.value is None)
        return True

    # --- methods of tensors

    def tensor_method(
        self, tensor: Tensor, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if tensor.attrs is not None and name in tensor.attrs and not isinstance(tensor.attrs[name], Opaque):
            return self.call_value(tensor.attrs[name], args, keywords, node)
        if name == "backward":
            self.backward([tensor], node, keywords)
            return NONE
        if name in _SIZES:
            return unknown(name)
        if name in ("detach", "clone") and name == "detach":
            made = Tensor(tensor.storages)
            made.name, made.opaque, made.quiet, made.uncertain = (
                tensor.name,
                tensor.opaque,
                tensor.quiet,
                tensor.uncertain,
            )
            made.origin = self.at(node)
            made.edited = tensor if tensor.grad else None
            return made
        if name == "requires_grad_":
            on = not (args and isinstance(args[0], Const) and args[0].value is False)
            for each in (tensor, *(tensor.members if isinstance(tensor, Group) else ())):
                each.grad = YES if on else NO
                if on and each.node is None:
                    each.leaf = True
                    each.origin = each.origin or self.at(node)
            return tensor
        if name in ("numpy", "__array__"):
            return self.array_of(self.behind(tensor, "numpy"))
        if name == "register_hook" and args:
            self.hook(args[0], node)
            return unknown()
        if name in _SAME:
            if name == "to" and any(_is_dtype(a) for a in (*args, *keywords.values())):
                return self.apply("clone", node, {"self": tensor}, shown=name)
            return tensor
        if name in ("long", "int", "bool", "byte", "short"):
            return self.fresh(node)
        if name in _COPIES:
            return self.apply("clone", node, {"self": tensor}, shown=name)
        if name == "contiguous":
            made = self.look(tensor, node, name)
            made.uncertain = True
            return made
        if name in ("reshape", "flatten", "reshape_as"):
            return self.look(tensor, node, name)
        if name == "detach_":
            self.refusals(tensor, "detach_", node, [], "detach_()")
            if tensor.base is None:
                tensor.node, tensor.grad, tensor.leaf = None, NO, True
            return tensor
        if name == "values" and tensor.sparse:
            made = self.look(tensor, node, "values")
            made.sparse = "values"
            return made
        if table.is_inplace(name):
            return self.in_place(tensor, name, args, keywords, node)
        if name in ("retain_grad", "share_memory_", "rename_", "__enter__", "__exit__"):
            return tensor
        if tensor.quiet and name not in _MANY and not (table.op(name) or _NOTHING).view:
            return self.fresh(node)
        return self.op(name, [tensor, *args], keywords, node, method=True)

    def array_of(self, tensor: Tensor) -> Instance:
        made = Instance(None, "ndarray")
        tensor.quiet = "numpy"
        made.attrs["memory"] = tensor
        return made

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
            return tensor
        info = table.op(name) or table.op(name[:-1])
        slots: dict[str, Value] = {}
        names = list(info.args[1:]) if info is not None else []
        for i, value in enumerate(args):
            slots[names[i] if i < len(names) else f"arg{i}"] = value
        slots.update(keywords)
        return self.write(tensor, name, node, slots, shown=shown or f"{name}()")

    # --- ops by name

    def op(
        self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST, method: bool = False
    ) -> Value:
        out = keywords.pop("out", None) if "out" in keywords else None
        if out is not None and not (isinstance(out, Const) and out.value is None):
            return self.into(out, name, args, keywords, node)
        if name in table.FACTORIES and not method:
            return self.factory(name, args, keywords, node)
        if name in table.CONSTANT or name in table.FACTORIES:
            return self.fresh(node)
        if name in ("einsum", "scaled_dot_product_attention"):
            return self.all_kept(name, [a for a in args if not isinstance(a, Const)], node)
        if name == "where" and len(args) == 1:
            return Seq([self.fresh(node), self.fresh(node)], "tuple")
        info = table.op(name)
        if name in _MANY:
            return self.view(args[0], "many", node, name) if args else unknown()
        if info is None:
            if any(isinstance(a, Tensor) for a in args):
                return self.unknown_call(None, args, keywords, node)
            return unknown()
        if name in ("max", "min") and len(args) > 1 and not isinstance(args[1], Const):
            return self.apply("maximum", node, {"self": args[0], "other": args[1]}, shown=name)
        pair = name in _PAIRS and (
            len(args) > 1 or "dim" in keywords or name in ("sort", "topk", "svd", "qr", "eigh", "slogdet")
        )
        slots: dict[str, Value] = {}
        for i, value in enumerate(args):
            if i < len(info.args):
                slots[info.args[i]] = value
        for key, value in keywords.items():
            slots[info.args[0] if key == "input" else key] = value
        if (
            name == "sum"
            and args
            and isinstance(args[0], Tensor)
            and args[0].sparse == "result"
            and (len(args) > 1 or "dim" in keywords)
        ) and self.grad_of(args[0]) == YES:
            self.told(
                words.refused(
                    "GM306",
                    self.at(node),
                    "sum over a dimension of a sparse tensor that needs grad has no derivative",
                    "warning",
                )
            )
        if pair:
            first = self.apply("sum", node, {"self": args[0]}, shown=name)
            if isinstance(first, Tensor) and first.node is not None:
                first.node.keeps = True
            return Seq([first, self.fresh(node)], "tuple")
        return self.apply(name, node, slots)

    def all_kept(self, name: str, args: list[Value], node: ast.AST) -> Value:
        """Products of several: each is kept for the others' sake."""
        found = {f"arg{i}": self.tensors(a) for i, a in enumerate(args)}
        info = table.Op(name, tuple(found), {k: tuple(found) for k in found})
        everything = [pair for pairs in found.values() for pair in pairs]
        grad = self.strongest(everything)
        result = self.fresh(node)
        if grad:
            made = self.record(name, everything, node)
            made.sure = grad == YES
            result.node, result.grad, result.leaf = made, grad, False
            self.keep(info, made, node, found, result, name)
        return result

    def factory(self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Tensor:
        made = self.fresh(node)
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
                    return self.from_array(option, node)
        return made

    def from_array(self, array: Value, node: ast.AST) -> Tensor:
        if isinstance(array, Instance) and array.nn == "ndarray":
            memory = array.attrs["memory"]
            assert isinstance(memory, Tensor)
            made = Tensor(memory.storages)
            made.origin = self.at(node)
            return made
        return self.fresh(node)

    def into(
        self, out: Value, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        found = [pair for value in args for pair in self.tensors(value)]
        if self.grad_mode is True and not self.healed:
            strength = max((self.grad_of(t) for _, t in found), default=NO)
            target = max((self.grad_of(t) for _, t in self.tensors(out)), default=NO)
            if max(strength, target) == YES:
                self.told(
                    words.refused(
                        "GM125",
                        self.at(node),
                        f"{name}(..., out=...) with arguments that require grad: PyTorch refuses it",
                        "error",
                    )
                )
        with self.mode(False):
            self.write(out, "copy_", node, shown=f"{name}(out=)")
        return out

    # --- backward

    def backward(
        self, roots: list[Tensor], node: ast.AST, keywords: dict[str, Value], inputs: Value | None = None
    ) -> None:
        retain = any(
            (isinstance(v := keywords.get(k), Const) and v.value is True)
            or (v is not None and not isinstance(v, Const))
            for k in ("retain_graph", "create_graph")
        )
        explicit = keywords.get("retain_graph")
        if isinstance(explicit, Const) and explicit.value is False:
            retain = False
        nodes: list[Node] = []
        for root in roots:
            top = self.node_of(root)
            if top is not None:
                nodes.append(top)
            elif (
                root.grad == NO
                and not root.opaque
                and self.grad_mode is not None
                and not root.uncertain
                and not root.attrs
            ):
                self.constant_loss(root, node)
        only = None
        if inputs is not None:
            targets = {id(n) for _, t in self.tensors(inputs) for n in self._nodes(t)}
            only = leading_to(nodes, targets) if targets else None
        leaves = self.ledger.backward(nodes, self.at(node), self.path, retain=retain, only=only)
        if inputs is None:
            for leaf in leaves:
                for storage in leaf.storages:
                    storage.has_grad = True

    def _nodes(self, tensor: Tensor) -> list[Node]:
        members = tensor.members if isinstance(tensor, Group) else [tensor]
        return [n for m in members if (n := self.node_of(m)) is not None]

    def constant_loss(self, root: Tensor, node: ast.AST) -> None:
        severity: Severity = "warning"
        self.told(
            words.refused(
                "GM132",
                self.at(node),
                "backward() of a value that depends on no tensor that requires grad: PyTorch refuses it",
                severity,
                ((("it is made here", root.origin),) if root.origin is not None else ()),
            )
        )

    def hook(self, function: Value, node: ast.AST) -> None:
        gradient = Tensor((Storage("grad", "grad"),))
        gradient.gradient, gradient.name = True, "grad"
        with self.mode(False):
            self.call_value(function, [gradient], {}, node)

    # --- custom functions

    def apply_function(
        self, cls: Class, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """MyFunction.apply(...): forward runs without grad mode; what it gives to ctx is kept by one node."""
        forward = self.find(cls, "forward")
        if not isinstance(forward, Function):
            return self.unknown_call(None, args, keywords, node)
        found = [pair for value in args for pair in self.tensors(value)]
        grad = self.strongest(found)
        made = self.record(cls.name, found, node)
        made.sure = grad == YES
        ctx = Instance(None, "ctx")
        ctx.attrs["$node"] = _Hold(made, grad, {id(s) for _, t in found for s in t.storages}, found, cls.name)
        setup = self.find(cls, "setup_context")
        hold = ctx.attrs["$node"]
        assert isinstance(hold, _Hold)
        self.holds.append(hold)
        with self.mode(False):
            if isinstance(setup, Function):
                result = self.call_function(forward, list(args), keywords, node)
                self.call_function(setup, [ctx, Seq(list(args), "tuple"), result], {}, node)
            else:
                result = self.call_function(forward, [ctx, *args], keywords, node)
        self.holds.pop()
        if not hold.dirty and grad:
            for where, shown, name in hold.wrote[:1]:
                self.told(
                    words.refused(
                        "GM206",
                        where,
                        f"{shown} changes `{name}`, an input of {cls.name}, and forward never calls ctx.mark_dirty",
                        "warning",
                    )
                )
        return self._outputs(result, made, grad, node, cls.name) if grad else result

    def check_function(self, cls: Class) -> None:
        """A custom Function by itself, given tensors of which nothing is known but that they need a gradient."""
        forward = self.find(cls, "forward")
        if not isinstance(forward, Function) or isinstance(self.find(cls, "setup_context"), Function):
            return
        args: list[Value] = [unknown(a.arg) for a in forward.node.args.args[1:]]
        self.apply_function(cls, args, {}, forward.node)

    def _outputs(self, result: Value, made: Node, grad: int, node: ast.AST, name: str) -> Value:
        if isinstance(result, Seq):
            return Seq([self._outputs(v, made, grad, node, name) for v in result.items], result.kind)
        if isinstance(result, Alt):
            return Alt([(p, self._outputs(v, made, grad, node, name)) for p, v in result.options])
        if isinstance(result, Opaque):
            result = result.as_tensor()
        if isinstance(result, Tensor):
            out = Tensor(result.storages, grad, made)
            out.leaf, out.of_function, out.name = False, name, ""
            return out
        return result

    def ctx_method(self, ctx: Instance, name: str, args: list[Value], node: ast.AST) -> Value:
        hold = ctx.attrs.get("$node")
        if name == "save_for_backward" and isinstance(hold, _Hold) and hold.grad:
            for value in args:
                for path, tensor in self.tensors(value):
                    self.save(path, tensor, hold.node, node, hold.name, "self", hold.grad == YES)
            hold.node.keeps = True
        if name == "mark_dirty" and isinstance(hold, _Hold):
            hold.dirty = True
        return NONE

    def hang_on_ctx(self, ctx: Instance, name: str, value: Value, node: ast.AST) -> None:
        hold = ctx.attrs.get("$node")
        if isinstance(hold, _Hold) and hold.grad:
            for path, tensor in self.tensors(value):
                if not tensor.opaque:
                    self.save(
                        path,
                        tensor,
                        hold.node,
                        self.statement or node,
                        hold.name,
                        "ctx",
                        hold.grad == YES,
                        True,
                    )


class _Hold(Value):
    """The node behind a ctx."""

    __slots__ = ("dirty", "found", "given", "grad", "name", "node", "wrote")

    def __init__(self, node: Node, grad: int, given: set[int], found: Any, name: str) -> None:
        self.node, self.grad, self.given, self.found, self.name = node, grad, given, found, name
        self.dirty = False
        self.wrote: list[tuple[Any, str, str]] = []


_NOTHING = table.Op("", ("self",), {})
_KNOWN = frozenset(
    """
    backward numpy item tolist size dim to cuda cpu float double half long int bool detach clone contiguous reshape flatten
    register_hook retain_grad values indices type chunk split unbind
    """.split()
)


def _is_dtype(value: Value) -> bool:
    if not isinstance(value, Ext):
        return False
    return value.name.rpartition(".")[2] in (
        "float32 float64 float16 bfloat16 half double float int32 int64 long int bool uint8 int8 int16 complex64".split()
    )


__all__ = ["Dict", "TorchAPI"]
