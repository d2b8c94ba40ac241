"""Sparse @ sparse: matrices, vectors, batches; the result has an entry wherever entries of both meet."""

from __future__ import annotations

from typing import Any

import torch

from gradmend.sparse.autograd.contract import Contract, bare, contract, plan_for
from gradmend.sparse.autograd.place import in_place_is_fine
from gradmend.sparse.autograd.primitive import apply, plain
from gradmend.sparse.autograd.product import agree, broadcast
from gradmend.sparse.errors import SparseError
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.places import unlinear
from gradmend.sparse.tensor import SparseTensor, make


def _blocks(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """[*batch, r, c] @ [*batch, c, d], all dimensions sparse: one product of blocks down a diagonal."""
    lead = a._pattern.size[:-2]
    if b._pattern.size[:-2] != lead or a.shape[-1] != b.shape[-2]:
        raise SparseError(f"shapes {tuple(a.shape)} and {tuple(b.shape)} can't be multiplied.")
    left, right = (make(x._pattern._diagonal_blocks(), x._values) for x in (a, b))
    made = sparse_sparse(left, right)
    (r, d), index = (a.shape[-2], b.shape[-1]), made._pattern._indices
    places = [*unlinear(index[0] // r, lead), index[0] % r, index[1] % d]
    return make(Pattern._trusted(torch.stack(places), (*lead, r, d)), made._values)


def sparse_sparse(a: SparseTensor, b: SparseTensor) -> Any:
    if a._pattern.ndim == b._pattern.ndim > 2 and not (
        a.dense_dim() or b.dense_dim() or a.batch_dims or b.batch_dims
    ):
        return _blocks(a, b)
    if a.dense_dim() or b.dense_dim() or a._pattern.ndim > 2 or b._pattern.ndim > 2:
        raise SparseError(
            f"S @ S takes matrices or vectors, not the shapes {tuple(a.shape)} and {tuple(b.shape)}: "
            f"reshape them, or use einsum with one dense operand."
        )
    if a.shape[-1] != b.shape[max(b.ndim - 2, b.batch_dims)]:
        raise SparseError(f"shapes {tuple(a.shape)} and {tuple(b.shape)} can't be multiplied.")
    if a.batch_dims or b.batch_dims:
        if a._pattern.ndim != 2 or b._pattern.ndim != 2:
            raise SparseError("S @ S with batch dimensions takes matrices: use S.unbatch() first.")
        return _batched(a, b)
    if a._pattern.ndim == 1 and b._pattern.ndim == 1:
        return (a * b).sum()
    if a._pattern.ndim == 1:
        return sparse_sparse(a.unsqueeze(0), b).squeeze(0)
    if b._pattern.ndim == 1:
        return sparse_sparse(a, b.unsqueeze(1)).squeeze(1)
    plan = plan_for(a._pattern, b._pattern)
    va, vb = agree(a._values, b._values)
    if not in_place_is_fine():  # transforms see torch's own ops
        values = contract(va, vb, plan, 2)
    else:
        values = bare(va, vb, plan, 2) if plain(va, vb) else apply(Contract, va, vb, plan, 2)
    return make(plan.pattern, values)


def _batched(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """One plan for the whole batch."""
    plan = plan_for(a._pattern, b._pattern)
    va, vb = agree(a._values, b._values)
    n = max(a.batch_dims, b.batch_dims)
    va, vb = va[(None,) * (n - a.batch_dims)], vb[(None,) * (n - b.batch_dims)]
    lead = broadcast(va.shape[:-1], vb.shape[:-1])
    values = va.new_zeros(*lead, plan.pattern.nnz)
    for left, right, slot in plan.terms():
        values = values.index_add(n, slot, va.index_select(n, left) * vb.index_select(n, right))
    return make(plan.pattern, values, n)
