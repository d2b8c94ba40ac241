"""Sparse @ sparse, row by row (Gustavson): gradients of both operands stay on their patterns.

Every product term pairs an entry of A with an entry of B and lands in an entry of C. That list of triples is
the plan; the product and both gradients are sums over it, so derivatives of any order are too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gradmend.sparse.errors import SparseError
from gradmend.sparse.functions.matmul import _agree
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.places import check_size
from gradmend.sparse.tensor import SparseTensor, make


class Plan(NamedTuple):
    pattern: Pattern
    left: Tensor  # entry of A, per term
    right: Tensor  # entry of B
    slot: Tensor  # entry of C


def plan(A: Pattern, B: Pattern) -> Plan:
    size = (A.size[0], B.size[1])
    check_size("A @ B", size)
    # By search, not by pointers: those would be as long as B's rows.
    first = torch.searchsorted(B.row.contiguous(), A.col.contiguous())
    count = torch.searchsorted(B.row.contiguous(), A.col.contiguous(), right=True) - first
    left = torch.repeat_interleave(torch.arange(A.nnz, device=A.device), count)
    right = torch.arange(left.shape[0], device=A.device) + (first - (count.cumsum(0) - count))[left]
    keys, slot = torch.unique(A.row[left] * size[1] + B.col[right], return_inverse=True)
    return Plan(Pattern.from_keys(keys, size), left, right, slot)


def sparse_sparse(a: SparseTensor, b: SparseTensor) -> SparseTensor | Tensor:
    if a.dense_dim() or b.dense_dim() or a.pattern.ndim > 2 or b.pattern.ndim > 2:
        raise SparseError(
            f"S @ S takes matrices or vectors, not the shapes {tuple(a.shape)} and {tuple(b.shape)}: "
            f"reshape them, or use einsum with one dense operand."
        )
    if a.shape[-1] != b.shape[max(b.ndim - 2, b.batch_dims)]:
        raise SparseError(f"shapes {tuple(a.shape)} and {tuple(b.shape)} can't be multiplied.")
    if a.batch_dims or b.batch_dims:
        return _batched(a, b)
    if a.pattern.ndim == 1 and b.pattern.ndim == 1:
        return (a * b).sum()
    if a.pattern.ndim == 1:
        return sparse_sparse(a.unsqueeze(0), b).squeeze(0)
    if b.pattern.ndim == 1:
        return sparse_sparse(a, b.unsqueeze(1)).squeeze(1)
    found = plan(a.pattern, b.pattern)
    va, vb = _agree(a.values(), b.values())
    terms = va.index_select(0, found.left) * vb.index_select(0, found.right)
    wide = terms.float() if terms.dtype in (torch.bfloat16, torch.float16) else terms
    values = wide.new_zeros(found.pattern.nnz).index_add(0, found.slot, wide).to(terms.dtype)
    return make(found.pattern, values)


def _batched(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """One plan for the whole batch."""
    found = plan(a.pattern, b.pattern)
    va, vb = _agree(a.values(), b.values())
    n = max(a.batch_dims, b.batch_dims)
    va, vb = va[(None,) * (n - a.batch_dims)], vb[(None,) * (n - b.batch_dims)]
    terms = va.index_select(n, found.left) * vb.index_select(n, found.right)
    values = terms.new_zeros(*terms.shape[:-1], found.pattern.nnz).index_add(n, found.slot, terms)
    return make(found.pattern, values, n)
