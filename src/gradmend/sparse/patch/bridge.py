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

from gradmend.sparse.errors import SparseError
from gradmend.sparse.helpers.gather import pick
from gradmend.sparse.ops.structure.index import sparse_mask
from gradmend.sparse.patch.known import Known, know, raw, remember
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor, make

# torch's own, whatever is patched later.
_coo, _csr, _csc = torch.sparse_coo_tensor, torch.sparse_csr_tensor, torch.sparse_csc_tensor


class Wrap(torch.autograd.Function):
    """Values in the known order -> a torch sparse tensor."""

    @staticmethod
    def forward(values: Tensor, known: Known, build: Callable[[Tensor], Tensor]) -> Tensor:
        return build(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.known = inputs[1]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        if grad is None:
            return None, None, None
        pattern: Pattern = ctx.known.pattern
        places = pattern.canonical()
        if grad.layout == torch.strided:
            found = pick(grad, places)
        else:
            S = entries(grad)
            found = S.values()
            if S.pattern is not places and S.pattern != places:
                found = sparse_mask(S, make(places, found.new_empty(0))).values()
        if pattern._slot is not None:
            found = found.index_select(0, pattern._slot)  # each duplicate gets its place's gradient
        return found, None, None


class Entries(torch.autograd.Function):
    """A torch sparse tensor -> its values in canonical order, duplicates summed."""

    @staticmethod
    def forward(A: Tensor, known: Known, layout: torch.layout, leaf: bool) -> Tensor:
        stored = raw(A)
        values = known.values
        if values is None or values.data_ptr() != stored.data_ptr():
            values = stored
        return known.pattern.arrange(values.detach())

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
        return to_torch(ctx.known.pattern.canonical(), grad, ctx.layout), None, None, None


def entries(A: Tensor) -> SparseTensor:
    """A as a pattern and values that are part of A's graph."""
    known = know(A)
    if A.requires_grad and torch.is_grad_enabled():
        source = graph_values(A, known)
        if source is not None:
            return make(known.pattern.canonical(), known.pattern.arrange(source))
        values = known.entries
        if values is None:
            values = Entries.apply(A, known, A.layout, A.is_leaf or converted(A))
            known.entries = values
    else:
        values = Entries.forward(A, known, A.layout, True)
    return make(known.pattern.canonical(), values)


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
    return getattr(A.grad_fn, "_saved_values", None)


def watched(A: Tensor) -> bool:
    """Someone waits for the gradient of A itself, and going around A would leave them waiting."""
    if not A.requires_grad or A.is_leaf or not (A.retains_grad or A._backward_hooks):
        return False
    return graph_values(A, know(A)) is not None


def wrap(values: Tensor, pattern: Pattern, build: Callable[[Tensor], Tensor]) -> Tensor:
    known = Known(pattern, values.detach(), ours=True)
    return remember(Wrap.apply(values, known, build), known)


def to_torch(pattern: Pattern, values: Tensor, layout: torch.layout) -> Tensor:
    """Canonical values -> a torch tensor of that layout (COO where a compressed one can't be)."""
    size = (*pattern.size, *values.shape[1:])
    if layout == torch.sparse_coo or pattern.ndim != 2:
        index = pattern.indices()  # a copy: torch hands it out to be written to
        return wrap(
            values, pattern, lambda v: _coo(index, v, size, is_coalesced=True, check_invariants=False)
        )
    if layout == torch.sparse_csr:
        ptr, col = pattern.ptr, pattern.col
        return wrap(values, pattern, lambda v: _csr(ptr, col, v, size, check_invariants=False))
    ptr, row, perm = pattern.transposed()
    by_column = Pattern.__new__(Pattern)
    by_column._set(pattern._indices, pattern.size, perm)
    by_column._canonical = pattern
    return wrap(
        values.index_select(0, perm), by_column, lambda v: _csc(ptr, row, v, size, check_invariants=False)
    )
