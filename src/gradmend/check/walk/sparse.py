"""Sparse tensors: what PyTorch refuses to do with one, and what has no derivative there."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from gradmend.check import words
from gradmend.check.findings import Severity
from gradmend.check.values import NO, YES, Const, Dict, Instance, Seq, Tensor, Value, is_const
from gradmend.check.walk.sparse_ops import DENSE_ONLY, NO_DERIVATIVE, NO_FORWARD, NO_SPARSE_DECAY

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker

# Which argument of each constructor holds the values.
_VALUES = {"sparse_coo_tensor": 1, "sparse_csr_tensor": 2, "sparse_csc_tensor": 2, "sparse_bsr_tensor": 2}
CONSTRUCTORS = frozenset(_VALUES)
_KEEP = frozenset("detach clone to cuda cpu requires_grad_ t transpose coalesce neg scaled".split())
_LARGE = 2**32  # entries of a dense matrix that no machine should be asked for in passing
COO, COALESCED, CSR, VALUES, GRADIENT = "coo", "coalesced", "csr", "values", "gradient"
LAYOUTS = (COO, COALESCED, CSR)


class Sparse:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def make(self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        at = _VALUES[name]
        values = args[at] if len(args) > at else keywords.get("values", Const(None))
        made = self.walk.tensors.apply("clone", node, {"self": values}, shown=name)
        if not isinstance(made, Tensor):
            return made
        whole = is_const(keywords.get("is_coalesced"), True)
        made.sparse = CSR if name != "sparse_coo_tensor" else COALESCED if whole else COO
        made.opaque = False
        size = args[at + 1] if len(args) > at + 1 else keywords.get("size")
        if isinstance(size, Seq) and all(
            isinstance(n, Const) and isinstance(n.value, int) for n in size.items
        ):
            made.attrs = {"$size": Const(tuple(n.value for n in size.items))}  # type: ignore[attr-defined]
        self.born(made)
        if self.walk.forward_mode:
            self._tell("GM319", node, f"{name}() under forward-mode differentiation has no derivative")
        return made

    def born(self, made: Tensor) -> None:
        made.attrs = {**(made.attrs or {}), "$path": Const(self.walk.path)}

    def _certain(self, owner: Tensor) -> bool:
        """Is it sparse here? Past a branch that was not decided, the branch may have asked just that."""
        there = (owner.attrs or {}).get("$path")
        return isinstance(there, Const) and all(pair in there.value for pair in self.walk.path)

    def refuse(
        self, owner: Tensor, name: str, args: list[Value], keywords: dict[str, Value], node: Any
    ) -> None:
        """Say what an op or a method does to a sparse tensor that it can't do."""
        if not self._certain(owner):
            return
        live = self.walk.tensors.grad_of(owner) == YES and self.walk.grad_mode is not False
        reduced = bool(args) or "dim" in keywords
        if name in ("numpy", "__array__"):
            self._tell("GM315", node, "numpy() of a sparse tensor: PyTorch refuses it")
        elif owner.sparse == COO and name in ("values", "indices"):
            self._tell(
                "GM301", node, f"{name}() of a tensor that was not coalesced: PyTorch refuses it", "warning"
            )
        elif owner.sparse == CSR and name in ("sum", "mean", "prod", "amax", "amin") and reduced:
            self._tell(
                "GM313", node, f"{name}() over a dimension of a CSR tensor: PyTorch has none", "warning"
            )
        elif owner.sparse != CSR and name == "sum" and reduced and live:
            what = "sum over a dimension of a sparse tensor that needs grad has no derivative"
            self._tell("GM306", node, what, "warning")
        elif owner.sparse != CSR and name in NO_FORWARD:
            self._tell(
                "GM310", node, f"{name}() of a sparse tensor: PyTorch has no sparse version of it", "warning"
            )
        elif owner.sparse != CSR and name in NO_DERIVATIVE and live:
            what = (
                f"{name}() of a sparse tensor that needs grad: PyTorch has no sparse version of its backward"
            )
            self._tell("GM310", node, what, "warning")
        elif name in ("mm", "matmul", "mv") and live:
            self._dense_gradient(owner, node)

    def summed(self, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """torch.sparse.sum: of COO tensors it has the derivative that Tensor.sum(dim) lacks."""
        if isinstance(args[0], Tensor) and args[0].sparse == CSR:
            self.refuse(args[0], "sum", args[1:], keywords, node)
        return self.walk.tensors.apply("sum", node, {"self": args[0]}, shown="torch.sparse.sum")

    def _dense_gradient(self, owner: Tensor, node: ast.AST) -> None:
        size = (owner.attrs or {}).get("$size")
        if isinstance(size, Const) and len(size.value) == 2 and size.value[0] * size.value[1] >= _LARGE:
            rows, columns = size.value
            what = f"the gradient of this product is first made as a dense matrix of {rows} x {columns}"
            self._tell("GM307", node, what, "warning")

    def operator(self, op: str, left: Value, right: Value, node: ast.AST) -> Value:
        """What an operator makes of it: scaled by a number it stays sparse."""
        self._refuse_operator(op, left, right, node)
        made = self.walk.tensors.apply(op, node, {"self": left, "other": right})
        owner = left if _layout(left) else right
        scaled = (op == "mul" and _number(left)) or (op in ("mul", "div") and _number(right))
        return self.result(owner, "scaled", made) if scaled else made

    def _refuse_operator(self, op: str, left: Value, right: Value, node: ast.AST) -> None:
        """`A + 1`, `A / D`: with a dense right side there is no such thing."""
        a, b = _layout(left), _layout(right)
        if not all(self._certain(v) for v in (left, right) if isinstance(v, Tensor) and _layout(v)):
            return
        if op in ("add", "sub") and ((a and _dense(right)) or (b and _number(left))):
            self._tell("GM311", node, "a sparse tensor plus a dense one, in this order: PyTorch refuses it")
        elif op == "div" and a and isinstance(right, Tensor) and _dense(right):
            self._tell("GM312", node, "a sparse tensor divided by a dense one: PyTorch refuses it", "warning")
        elif op == "matmul" and a and isinstance(left, Tensor):
            self.refuse(left, "matmul", [right], {}, node)

    def result(self, owner: Value, name: str, made: Value) -> Value:
        """What stays sparse: a transpose, a copy."""
        if (
            isinstance(owner, Tensor)
            and isinstance(made, Tensor)
            and _layout(owner)
            and made.sparse != VALUES
        ):
            if name in _KEEP:
                made.sparse = COALESCED if name == "coalesce" else owner.sparse
                if owner.attrs and made is not owner:
                    told = {k: v for k, v in owner.attrs.items() if k.startswith("$")}
                    made.attrs = {**(made.attrs or {}), **told}
            elif not name.startswith("to_sparse"):
                made.sparse = ""
        return made

    def assigned(self, owner: Value, node: ast.AST) -> None:
        if isinstance(owner, Tensor) and _layout(owner) and self._certain(owner):
            self._tell("GM314", node, "assignment to a part of a sparse tensor: PyTorch refuses it")

    def batched(self, data: Value, keywords: dict[str, Value], node: ast.AST) -> None:
        if isinstance(data, Seq) and "collate_fn" not in keywords and any(_layout(v) for v in data.items):
            what = "a DataLoader can't put sparse tensors into a batch without a collate_fn"
            self._tell("GM316", node, what, "warning")

    def copied(self, value: Value, node: ast.AST) -> None:
        if isinstance(value, Tensor) and value.param and _layout(value):
            self._tell("GM317", node, "deepcopy of a sparse Parameter: PyTorch refuses it")

    def stepped(self, kind: str, owner: Instance, tensors: list[Tensor], node: ast.AST) -> None:
        """An optimizer that takes no sparse gradients, or only those."""
        for tensor in tensors:
            if not any(s.has_grad for s in tensor.storages) or tensor.opaque or tensor.grad == NO:
                continue
            if tensor.sparse == GRADIENT and kind in DENSE_ONLY:
                what = f"{kind} takes no sparse gradients, and the Embedding with sparse=True gives one"
                self._tell("GM308", node, what)
            elif tensor.sparse == GRADIENT and kind in NO_SPARSE_DECAY and _decays(owner):
                what = f"{kind} with weight_decay takes no sparse gradients, and the Embedding with sparse=True gives one"
                self._tell("GM308", node, what)
            elif tensor.sparse != GRADIENT and kind == "SparseAdam" and tensor.param:
                self._tell(
                    "GM309",
                    node,
                    f"SparseAdam takes only sparse gradients, and `{tensor.name}` has a dense one",
                )

    def _tell(self, code: str, node: ast.AST, what: str, severity: Severity = "error") -> None:
        if not self.walk.healed and not self.walk.patched:
            self.walk.told(words.refused(code, self.walk.at(node), what, severity))


def is_sparse(value: Value) -> bool:
    return _layout(value)


def _layout(value: Value) -> bool:
    return isinstance(value, Tensor) and value.sparse in LAYOUTS


def _decays(optimizer: Instance) -> bool:
    """Was it made with a weight_decay that is not zero?"""
    groups = optimizer.attrs.get("param_groups")
    group = groups.items[0] if isinstance(groups, Seq) and groups.items else None
    decay = group.items.get("weight_decay") if isinstance(group, Dict) else None
    return isinstance(decay, Const) and isinstance(decay.value, (int, float)) and decay.value != 0


def _number(value: Value) -> bool:
    return (
        isinstance(value, Const)
        and isinstance(value.value, (int, float))
        and not isinstance(value.value, bool)
    )


def _dense(value: Value) -> bool:
    """A number, or a tensor that is known to be none of the sparse ones."""
    return _number(value) or (
        isinstance(value, Tensor) and not value.opaque and not value.sparse and not value.uncertain
    )
