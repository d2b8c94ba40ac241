"""Diagonals and triangles."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.autograd.place import put
from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import SparseError
from gradmend.sparse.helpers.dims import entries_back, entries_first, number, wrap
from gradmend.sparse.helpers.rebuild import only
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.places import check_size
from gradmend.sparse.tensor import SparseTensor, make


@implements("diagonal")
def take_diagonal(S: SparseTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Of a matrix (or a batch of them): a dense vector."""
    b, offset, first, second = S.batch_dims, number("offset", offset), wrap(S, dim1), wrap(S, dim2)
    if S._pattern.ndim != 2 or {first, second} != {b, b + 1}:
        raise SparseError(
            f"diagonal is over the two sparse dimensions; S of the shape {tuple(S.shape)} was given ({dim1}, {dim2})."
        )
    if first > second:
        offset = -offset
    rows, cols = S._pattern.size
    start = max(-offset, 0)
    length = max(min(rows - start, cols - max(offset, 0)), 0)
    on = (S._pattern._col - S._pattern._row == offset).nonzero().squeeze(1)
    values = entries_first(S).index_select(0, on)
    out = put(length, S._pattern._row[on] - start, values)
    # torch.diagonal puts the diagonal last.
    return entries_back(out, b) if not S.dense_dim() else out.movedim(0, -1)


@implements("diag")
def diag(S: SparseTensor, diagonal: int = 0) -> Any:
    """A matrix's diagonal, or a matrix from a sparse vector."""
    diagonal = number("diagonal", diagonal)
    if S.ndim == S._pattern.ndim == 2:
        return take_diagonal(S, diagonal)
    if S.ndim != 1:
        raise SparseError(f"diag takes a vector or a matrix, not the shape {tuple(S.shape)}.")
    n = S.shape[0] + abs(diagonal)
    check_size("diag", (n, n))
    place = S._pattern._row
    index = torch.stack([place + max(-diagonal, 0), place + max(diagonal, 0)])
    return make(Pattern._trusted(index, (n, n)), S._values)


@implements("diag_embed")
def diag_embed(S: SparseTensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> SparseTensor:
    """The last dimension becomes a diagonal: [..., n] -> [..., n, n]."""
    offset = number("offset", offset)
    if (dim1, dim2) not in ((-2, -1), (S.ndim - 1, S.ndim)):
        raise SparseError("diag_embed of a sparse tensor puts the diagonal into the last two dimensions.")
    S = S.sparsify()
    index, n = S._pattern._indices, S.shape[-1] + abs(offset)
    size = (*S._pattern.size[:-1], n, n)
    check_size("diag_embed", size)
    places = torch.cat([index[:-1], index[-1:] + max(-offset, 0), index[-1:] + max(offset, 0)])
    return make(Pattern._trusted(places, size), S._values)


@implements("diagflat")
def diagflat(S: SparseTensor, offset: int = 0) -> SparseTensor:
    return diag_embed(S.sparsify().flatten(), offset)


@implements("trace")
def trace(S: SparseTensor) -> Tensor:
    if S._pattern.ndim != 2 or S.ndim != 2:
        raise SparseError(f"trace takes a matrix, not the shape {tuple(S.shape)}.")
    on = S._pattern._col == S._pattern._row
    return torch.where(on, S._values, torch.zeros_like(S._values)).sum()


@implements("tril")
def tril(S: SparseTensor, diagonal: int = 0) -> SparseTensor:
    index = _last_two(S)
    return only(S, index[-1] - index[-2] <= number("diagonal", diagonal))


@implements("triu")
def triu(S: SparseTensor, diagonal: int = 0) -> SparseTensor:
    index = _last_two(S)
    return only(S, index[-1] - index[-2] >= number("diagonal", diagonal))


def _last_two(S: SparseTensor) -> Tensor:
    if S._pattern.ndim < 2 or S.dense_dim():
        raise SparseError(
            f"tril and triu take 2 sparse dimensions at the end, and S has the shape {tuple(S.shape)}."
        )
    return S._pattern._indices


def eye(n: int, m: int | None = None, **options: Any) -> SparseTensor:
    """The identity."""
    m = n if m is None else m
    place = torch.arange(min(n, m), device=options.get("device"))
    pattern = Pattern._trusted(torch.stack([place, place]), (n, m))
    return make(pattern, torch.ones(min(n, m), **options))


def diag_of(values: Tensor) -> SparseTensor:
    """A diagonal matrix from a dense vector."""
    place = torch.arange(values.shape[0], device=values.device)
    n = values.shape[0]
    return make(Pattern._trusted(torch.stack([place, place]), (n, n)), values)
