"""Two functions between values and torch's sparse tensors, each the backward of the other.

    Wrap:    values -> torch sparse tensor      (what a constructor does)
    Entries: torch sparse tensor -> values      (what an operation starts with)

Gradients so travel as values on a known pattern: nothing is masked, sorted or made dense on the way, hooks and
`retain_grad()` on the sparse tensor still work, and second derivatives pass through both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.autograd.primitive import apply
from gradmend.sparse.autograd.undefined import skips_undefined
from gradmend.sparse.errors import SparseError
from gradmend.sparse.helpers.gather import pick
from gradmend.sparse.ops.structure.index import sparse_mask
from gradmend.sparse.patch.known import (
    Known,
    Places,
    know,
    moved,
    raw,
    remember,
    same_memory,
    saved_values,
    supported,
)
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.source import Arranged
from gradmend.sparse.tensor import SparseTensor, make

# torch's own, whatever is patched later.
_coo, _csr, _csc = torch.sparse_coo_tensor, torch.sparse_csr_tensor, torch.sparse_csc_tensor


@skips_undefined
class Wrap(torch.autograd.Function):
    """Values in the known order -> a torch sparse tensor."""

    @staticmethod
    def forward(
        values: Tensor, known: Known, build: Callable[[Tensor], Tensor], shared: tuple[Tensor, ...]
    ) -> Tensor:
        return build(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.known, ctx.shared = inputs[1], inputs[3]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        pattern: Pattern = ctx.known.pattern
        places = pattern.canonical()
        S = entries(grad) if supported(grad) else None
        if S is not None and (S._pattern is places or S._pattern == places):
            found = S._values
        else:
            # From an operation of torch's own, which has used the indices as they were when it ran.
            if ctx.shared and not ctx.known.places.are(ctx.shared):
                raise moved()
            found = pick(grad.to_dense(), places) if S is None else at_places(S, places)
        if pattern._slot is not None:
            found = found.index_select(0, pattern._slot)  # each duplicate gets its place's gradient
        return found, None, None, None


def at_places(S: SparseTensor, places: Pattern) -> Tensor:
    """[nnz, *dense]: S read at the places, whichever of its dimensions are sparse."""
    tail = S.shape[places.ndim :]
    mask = make(places, S._values.new_empty(()).expand(places.nnz, *tail))
    return sparse_mask(S, mask)._values.reshape(places.nnz, *tail)


@skips_undefined
class Entries(torch.autograd.Function):
    """A torch sparse tensor -> its values as they are stored: the same memory, never a copy that could fall behind."""

    @staticmethod
    def forward(A: Tensor, known: Known, layout: torch.layout, leaf: bool) -> Tensor:
        return raw(A).detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.known, ctx.layout, ctx.leaf = inputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        if torch.is_grad_enabled() and not ctx.known.ours and not ctx.leaf:
            raise SparseError(
                "create_graph=True reached a torch sparse tensor that no constructor patched by gradmend.sparse.patch() "
                "has built (a conversion did, or it is older than patch()): PyTorch may cut the second derivative there "
                "in silence. Build it of indices and values while patched, or use gradmend.sparse.SparseTensor."
            )
        pattern: Pattern = ctx.known.pattern
        if not pattern.is_canonical:
            grad = Arranged(pattern).gradient(grad, 0)
        return to_torch(pattern.canonical(), grad, ctx.layout), None, None, None


def entries(A: Tensor) -> SparseTensor:
    """A as a pattern and values that are part of A's graph."""
    known = know(A)
    if A.requires_grad and torch.is_grad_enabled():
        values = graph_values(A, known)
        if values is None:
            values = known.entries(A)
        if values is None:
            # torch accumulates no CSC gradient (2.13).
            layout = torch.sparse_coo if A.is_leaf and A.layout == torch.sparse_csc else A.layout
            values = apply(Entries, A, known, layout, A.is_leaf or converted(A))
            known.keep(values)
    else:
        values = raw(A)
    pattern = known.pattern
    if pattern.is_canonical and not torch.is_grad_enabled():
        return make(pattern, values)
    # A and the tensor it was built from count their versions apart, so what backward keeps is memory of its own.
    copied = values.clone() if pattern.is_canonical else pattern.arrange(values)
    node: Any = copied.grad_fn
    if node is not None:
        node.metadata["gradmend.entries"] = values  # for the next use, as long as this one lives
    return make(pattern.canonical(), copied)


# Nodes of one input that keep the places: what is behind them has the same gradient.
_KEEPING = ("Alias", "Clone", "Coalesce", "Neg", "Permute", "TBackward", "ToCopy", "ToSparse", "Transpose")
_CONSTRUCTOR = "SparseCooTensorWithDims"
_MOST = 32  # nodes


def by_values(A: Tensor) -> bool:
    """Whether only the values of A can have a gradient: a constructor made A of them, directly or by such nodes.

    Of a sparse leaf, and of a dense tensor made sparse, zeros that aren't stored have gradients in torch too.
    """
    if know(A).ours or graph_values(A, know(A)) is not None:
        return True
    node: Any = A.grad_fn
    for _ in range(_MOST):
        if (
            node is None
            or isinstance(getattr(node, "known", None), Known)
            or node.name().startswith(_CONSTRUCTOR)
        ):
            return node is not None
        if saved_values(node) is not None:
            return True
        behind = [n for n, _ in node.next_functions if n is not None]
        if len(behind) != 1 or not node.name().startswith(_KEEPING):
            return False
        node = behind[0]
    return False


def converted(A: Tensor) -> bool:
    """By to_sparse() and its kin from a dense leaf: to any order, torch's backward of that is right (2.13)."""
    if A.grad_fn is None or not A.grad_fn.name().startswith("ToSparse"):
        return False
    source = getattr(A.grad_fn.next_functions[0][0], "variable", None)
    return source is not None and source.layout == torch.strided


def graph_values(A: Tensor, known: Known) -> Tensor | None:
    """The user's values, graph and all, of a compressed tensor that torch built.

    That constructor's own backward is `grad.to_dense()` (2.13), so gradients must not go through it.
    """
    if known.ours or A.layout == torch.sparse_coo or A.grad_fn is None:
        return None
    values = saved_values(A.grad_fn)
    return values if values is not None and same_memory(values, raw(A)) else None


def watched(A: Tensor) -> bool:
    """Someone waits for the gradient of A itself, and going around A would leave them waiting."""
    if not A.requires_grad or A.is_leaf or not (A.retains_grad or A._backward_hooks):
        return False
    return graph_values(A, know(A)) is not None


def wrap(
    values: Tensor, places: Places, build: Callable[[Tensor], Tensor], shared: tuple[Tensor, ...] = ()
) -> Tensor:
    """`shared`: the index tensors of what is built, where they are someone else's memory too."""
    known = Known(places, ours=True)
    return remember(apply(Wrap, values, known, build, shared), known)


def to_torch(pattern: Pattern, values: Tensor, layout: torch.layout) -> Tensor:
    """Canonical values -> a torch tensor of that layout (COO where a compressed one can't be)."""
    # Copies, of indices and of what backward may need: torch hands them out to be written to.
    size = (*pattern.size, *values.shape[1:])

    def own(v: Tensor) -> Tensor:
        return v.clone() if values.requires_grad else v

    if layout == torch.sparse_coo or pattern.ndim != 2:
        index = pattern.indices()
        return wrap(
            values,
            Places(pattern, torch.sparse_coo, (pattern._indices,)),
            lambda v: _coo(index, own(v), size, is_coalesced=True, check_invariants=False),
        )
    if layout == torch.sparse_csr:
        ptr, col = pattern.ptr, pattern.col
        places = Places(pattern, layout, (pattern._ptr, pattern._col))
        return wrap(values, places, lambda v: _csr(ptr, col, own(v), size, check_invariants=False))
    ptr, row, perm = pattern.transposed()
    by_column = Pattern.__new__(Pattern)
    by_column._set(pattern._indices, pattern.size, perm)
    by_column._canonical = pattern
    places = Places(by_column, layout, pattern._transposed()[:2])
    return wrap(
        values.index_select(0, perm), places, lambda v: _csc(ptr, row, v, size, check_invariants=False)
    )
