"""Putting tensors together: cat, stack, block_diag, kron, outer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import SparseError
from gradmend.sparse.generate import full
from gradmend.sparse.helpers.dims import split, wrap
from gradmend.sparse.kernels import merging
from gradmend.sparse.ops.elementwise.binary import spread
from gradmend.sparse.ops.structure.shape import sparsify, unbatch, unsqueeze
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.places import check_size, linear, order_of
from gradmend.sparse.setops import union
from gradmend.sparse.tensor import SparseTensor, make


@implements("cat", "concat", "concatenate", method=False)
def cat(tensors: Sequence[Any], dim: int = 0) -> SparseTensor:
    parts = [_as_sparse(x) for x in tensors]
    if not parts:
        raise SparseError("cat takes at least one tensor.")
    first = parts[0]
    d = wrap(first, dim)
    if len(parts) == 1:
        return first
    _fit(parts, d)
    if len({(p.batch_dims, p.dense_dim()) for p in parts}) > 1:
        return cat([sparsify(p) for p in parts], d)
    kind = split(first, (d,))
    if kind.sparse:
        if any(p._values.shape[: p.batch_dims] != first._values.shape[: p.batch_dims] for p in parts):
            raise SparseError("batch dimensions differ: they must be equal to cat along another dimension.")
        return _cat_sparse(parts, kind.sparse[0])
    shared = _on_one_pattern(parts)
    if kind.batch and shared is None:
        return cat([unbatch(p) for p in parts], d)
    at = d if kind.batch else first.batch_dims + 1 + kind.dense[0]
    if shared is None:
        shared = _spread_all(parts)
    return shared[0].like(torch.cat([p._values for p in shared], at))


def _cat_sparse(parts: list[SparseTensor], axis: int) -> SparseTensor:
    first, b = parts[0], parts[0].batch_dims
    size = list(first._pattern.size)
    size[axis] = sum(p._pattern.size[axis] for p in parts)
    check_size("cat", tuple(size))
    index = torch.cat([p._pattern._indices for p in parts], 1)
    offset, at = first._pattern.size[axis], first.nnz
    for p in parts[1:]:
        index[axis, at : at + p.nnz] += offset
        offset, at = offset + p._pattern.size[axis], at + p.nnz
    if axis and len(parts) == 2:
        return _beside(parts, index, tuple(size))
    return _sorted(index, tuple(size), torch.cat([p._values for p in parts], b), b, axis > 0)


def _beside(parts: list[SparseTensor], index: Tensor, size: tuple[int, ...]) -> SparseTensor:
    """Two tensors whose entries ascend each: they are merged."""
    (a, b), n = parts, parts[0].batch_dims
    keys, cut = linear(index, size), parts[0].nnz
    places, left, right = merging.union(keys[:cut], keys[cut:], index[:, :cut], index[:, cut:])
    made = a._values.new_zeros((*a._values.shape[:n], keys.shape[0], *a._values.shape[n + 1 :]))
    values = made.index_copy(n, left, a._values).index_copy(n, right, b._values.to(made.dtype))
    return make(Pattern._trusted(places, size), values, n)


def _sorted(
    index: Tensor, size: tuple[int, ...], values: Tensor, b: int, unsorted: bool = True
) -> SparseTensor:
    if unsorted:
        order = order_of(linear(index, size))
        index, values = index[:, order], values.index_select(b, order)
    return make(Pattern._trusted(index, size), values, b)


def _as_sparse(x: Any) -> SparseTensor:
    if isinstance(x, SparseTensor):
        return x
    if not isinstance(x, Tensor):
        raise SparseError(f"sparse tensors are joined with tensors, not with {type(x).__name__}.")
    made: SparseTensor = SparseTensor.from_dense(x)
    return made


def _fit(parts: list[SparseTensor], d: int) -> None:
    shapes = [tuple(p.shape) for p in parts]
    if len({s[:d] + s[d + 1 :] for s in shapes}) > 1 or len({len(s) for s in shapes}) > 1:
        raise SparseError(
            f"shapes {shapes} differ in more than dimension {d}: they can't be joined along it."
        )


def _on_one_pattern(parts: list[SparseTensor]) -> list[SparseTensor] | None:
    return parts if all(p._pattern == parts[0]._pattern for p in parts[1:]) else None


def _spread_all(parts: list[SparseTensor]) -> list[SparseTensor]:
    """All on the union of their patterns, zeros filled in."""
    whole = parts[0]._pattern
    for p in parts[1:]:
        whole = union(whole, p._pattern)[0]
    return [
        p.like(spread(p, torch.searchsorted(whole._keys(), p._pattern._keys()), whole), whole) for p in parts
    ]


@implements("stack", method=False)
def stack(tensors: Sequence[Any], dim: int = 0) -> SparseTensor:
    """A new sparse dimension; `gradmend.sparse.batch` makes a batch dimension instead."""
    return cat([unsqueeze(_as_sparse(x), dim) for x in tensors], dim)


@implements("vstack", "row_stack", method=False)
def vstack(tensors: Sequence[Any]) -> SparseTensor:
    return cat([unsqueeze(_as_sparse(x), 0) if x.ndim == 1 else x for x in tensors], 0)


@implements("hstack", method=False)
def hstack(tensors: Sequence[Any]) -> SparseTensor:
    return cat(tensors, 0 if tensors[0].ndim == 1 else 1)


@implements("column_stack", method=False)
def column_stack(tensors: Sequence[Any]) -> SparseTensor:
    """Vectors become columns."""
    return cat([unsqueeze(_as_sparse(x), 1) if x.ndim == 1 else x for x in tensors], 1)


@implements("block_diag", method=False)
def block_diag(*tensors: Any) -> SparseTensor:
    """Ragged batches as one matrix: each tensor a block, products never mix them."""
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = tuple(tensors[0])
    parts = [_as_sparse(x) for x in tensors]
    if not parts or any(p._pattern.ndim != 2 or p.batch_dims or p.dense_dim() for p in parts):
        raise SparseError("block_diag takes matrices: tensors with 2 sparse dimensions and no batch.")
    rows, at = [], torch.zeros(2, 1, dtype=torch.int64, device=parts[0].device)
    for p in parts:
        rows.append(p._pattern._indices + at)
        at = at + torch.tensor(p._pattern.size, device=at.device)[:, None]
    size = tuple(int(n) for n in at)
    check_size("block_diag", size)
    return make(Pattern._trusted(torch.cat(rows, 1), size), torch.cat([p._values for p in parts]))


def batch(tensors: Sequence[SparseTensor]) -> SparseTensor:
    """A batch dimension over tensors that share their pattern (or come to, zeros filled in)."""
    parts = _on_one_pattern(list(tensors)) or _spread_all(list(tensors))
    return parts[0].like(torch.stack([p._values for p in parts]), batch_dims=parts[0].batch_dims + 1)


@implements("kron")
def kron(a: Any, b: Any) -> SparseTensor:
    a, b = sparsify(_as_sparse(a)), sparsify(_as_sparse(b))
    while a.ndim < b.ndim:
        a = unsqueeze(a, 0)
    while b.ndim < a.ndim:
        b = unsqueeze(b, 0)
    size = tuple(m * n for m, n in zip(a._pattern.size, b._pattern.size, strict=True))
    check_size("kron", size)
    scale = torch.tensor(b._pattern.size, device=a.device)[:, None, None]
    index = (a._pattern._indices[:, :, None] * scale + b._pattern._indices[:, None, :]).flatten(1)
    return _sorted(index, size, (a._values[:, None] * b._values).flatten(), 0)


@implements("outer", "ger")
def outer(a: Any, b: Any) -> Any:
    """Of two vectors: sparse, with an entry where an entry of one meets one of the other."""
    if any(x.ndim != 1 for x in (a, b)):
        raise SparseError(f"outer takes vectors, not the shapes {tuple(a.shape)} and {tuple(b.shape)}.")
    a, b = (
        x if isinstance(x, SparseTensor) else SparseTensor.from_dense(x, full(tuple(x.shape)).to(x.device))
        for x in (a, b)
    )
    if a.dtype != b.dtype:
        kind = torch.promote_types(a.dtype, b.dtype)
        a, b = a.to(kind), b.to(kind)
    return kron(a.unsqueeze(1), b.unsqueeze(0))
