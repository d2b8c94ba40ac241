"""Shapes: transpose, permute, reshape, squeeze, flip, and dense dimensions turned into sparse ones."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import ArgumentError, OutsideError, SparseError
from gradmend.sparse.helpers.dims import as_dims, number, split, wrap
from gradmend.sparse.helpers.rebuild import rebuild
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.places import check_size, is_wide, unlinear
from gradmend.sparse.tensor import SparseTensor, make


@implements("sparsify")
def sparsify(S: SparseTensor) -> SparseTensor:
    """Batch and dense dimensions become sparse ones, every number of theirs an entry."""
    lead, tail = S._values.shape[: S.batch_dims], S._values.shape[S.batch_dims + 1 :]
    if not lead and not tail:
        return S
    n, device = S._pattern.ndim, S.device
    b, d = math.prod(lead), math.prod(tail)
    parts = [
        unlinear(torch.arange(b, device=device), tuple(lead))
        if lead
        else torch.empty(0, b, dtype=torch.int64),
        S._pattern._indices,
        unlinear(torch.arange(d, device=device), tuple(tail))
        if tail
        else torch.empty(0, d, dtype=torch.int64),
    ]
    grid = (b, S.nnz, d)
    rows = [
        axis.view(*[-1 if i == k else 1 for i in range(3)]).expand(grid).reshape(-1)
        for k, part in enumerate(parts)
        for axis in part
    ]
    pattern = Pattern._trusted(torch.stack(rows), (*lead, *S._pattern.size[:n], *tail))
    return make(pattern, S._values.reshape(-1))


@implements("unbatch")
def unbatch(S: SparseTensor) -> SparseTensor:
    """Batch dimensions become sparse ones; dense dimensions stay."""
    b = S.batch_dims
    if not b:
        return S
    tail = S._values.shape[b + 1 :]
    alone = S._values.new_zeros(()).expand(S._values.shape[: b + 1])  # one number an entry, whatever it is
    places = sparsify(make(S._pattern, alone, b))
    return make(places._pattern, S._values.reshape(-1, *tail))


@implements("t")
def t(S: SparseTensor) -> SparseTensor:
    if S.ndim == 1:
        return S
    if S._pattern.ndim == 2 and S._values.dim() == 1:
        return _permute_sparse(S, (1, 0))
    if S.ndim != 2:
        raise SparseError(f"t() takes at most 2 dimensions, and S has {S.ndim}: use transpose or permute.")
    return transpose(S, 0, 1)


@implements("transpose", "swapaxes", "swapdims")
def transpose(S: SparseTensor, dim0: int, dim1: int) -> SparseTensor:
    order = list(range(S.ndim))
    a, b = wrap(S, dim0), wrap(S, dim1)
    order[a], order[b] = order[b], order[a]
    return permute(S, order)


@implements("permute")
def permute(S: SparseTensor, *dims: Any) -> SparseTensor:
    order = tuple(wrap(S, d) for d in _ints(dims))
    if sorted(order) != list(range(S.ndim)):
        raise SparseError(f"permute{order} doesn't name each of the {S.ndim} dimensions once.")
    b, n = S.batch_dims, S._pattern.ndim
    groups = (order[:b], order[b : b + n], order[b + n :])
    ranges = (range(b), range(b, b + n), range(b + n, S.ndim))
    if any(set(g) != set(r) for g, r in zip(groups, ranges, strict=True)):
        return permute(sparsify(S), order)
    values = S._values
    moved = (*groups[0], b, *(d - n + 1 for d in groups[2]))
    if moved != tuple(range(values.dim())):
        values = values.permute(moved)
    inner = tuple(d - b for d in groups[1])
    return _permute_sparse(S.like(values), inner)


def _permute_sparse(S: SparseTensor, order: tuple[int, ...]) -> SparseTensor:
    if order == tuple(range(len(order))):
        return S
    if len(order) == 2:
        perm = S._pattern._transposed()[2] if not is_wide(max(S._pattern.size), S._pattern.nnz) else None
        if perm is not None:
            return make(S._pattern.flipped(), S._values.index_select(S.batch_dims, perm), S.batch_dims)
    size = tuple(S._pattern.size[d] for d in order)
    return rebuild(S, S._pattern._indices[list(order)], size, None, "permute")


@implements("movedim", "moveaxis")
def movedim(S: SparseTensor, source: Any, destination: Any) -> SparseTensor:
    src, dst = (as_list(S, x) for x in (source, destination))
    order = [d for d in range(S.ndim) if d not in src]
    for d, s in sorted(zip(dst, src, strict=True)):
        order.insert(d, s)
    return permute(S, order)


def as_list(S: SparseTensor, x: Any) -> list[int]:
    return [wrap(S, d) for d in (x if isinstance(x, Sequence) else (x,))]


@implements("reshape", "view")
def reshape(S: SparseTensor, *shape: Any) -> SparseTensor:
    new = _ints(shape)
    total = S.numel()
    if new.count(-1) > 1:
        raise SparseError(f"reshape{new}: only one dimension can be -1.")
    if any(n < -1 for n in new):
        raise SparseError(f"reshape{new}: dimensions are not negative.")
    if -1 in new:
        rest = math.prod(n for n in new if n != -1)
        new = tuple((total // rest if rest else 0) if n == -1 else n for n in new)
    if math.prod(new) != total:
        raise SparseError(
            f"a tensor of the shape {tuple(S.shape)} can't take the shape {new}: {total} entries."
        )
    b, tail = S.batch_dims, tuple(S._values.shape[S.batch_dims + 1 :])
    lead = tuple(S._values.shape[:b])
    end = len(new) - len(tail)
    if new[:b] != lead or new[end:] != tail or end <= b:
        if lead or tail:
            return reshape(sparsify(S), new)
        raise SparseError("a sparse tensor keeps at least one dimension: use S.sum() for a number.")
    inner = new[b:end]
    check_size("reshape", inner)
    return make(Pattern._trusted(unlinear(S._pattern._keys(), inner), inner), S._values, b)


@implements("flatten")
def flatten(S: SparseTensor, start_dim: int = 0, end_dim: int = -1) -> SparseTensor:
    a, b = wrap(S, start_dim), wrap(S, end_dim)
    return reshape(S, (*S.shape[:a], math.prod(S.shape[a : b + 1]), *S.shape[b + 1 :]))


@implements("ravel")
def ravel(S: SparseTensor) -> SparseTensor:
    return flatten(S)


@implements("unflatten")
def unflatten(S: SparseTensor, dim: int, sizes: Sequence[int]) -> SparseTensor:
    d = wrap(S, dim)
    if -1 in sizes:
        rest = math.prod(n for n in sizes if n != -1)
        sizes = [S.shape[d] // rest if n == -1 else n for n in sizes]
    return reshape(S, (*S.shape[:d], *sizes, *S.shape[d + 1 :]))


@implements("reshape_as", "view_as")
def reshape_as(S: SparseTensor, other: Any) -> SparseTensor:
    return reshape(S, tuple(other.shape))


@implements("unsqueeze")
def unsqueeze(S: SparseTensor, dim: int) -> SparseTensor:
    dim = number("dim", dim)
    if not -S.ndim - 1 <= dim <= S.ndim:
        raise OutsideError(f"unsqueeze({dim}) is outside the shape {tuple(S.shape)}.")
    d = dim % (S.ndim + 1)
    b, n = S.batch_dims, S._pattern.ndim
    if d < b:
        return S.like(S._values.unsqueeze(d), batch_dims=b + 1)
    if d > b + n:
        return S.like(S._values.unsqueeze(d - n + 1))
    index = S._pattern._indices
    at = d - b
    rows = torch.cat([index[:at], torch.zeros_like(index[:1]), index[at:]])
    size = (*S._pattern.size[:at], 1, *S._pattern.size[at:])
    return make(Pattern._trusted(rows, size), S._values, b)


@implements("squeeze")
def squeeze(S: SparseTensor, dim: Any = None) -> Any:
    """Drops dimensions of size 1; the last sparse one is kept."""
    dims: tuple[int, ...] = tuple(range(S.ndim))
    if dim is not None:  # unlike a sum's, an empty list of dimensions is none of them
        dims = () if isinstance(dim, tuple | list) and not dim else as_dims(S, dim)
    for d in reversed([d for d in dims if S.shape[d] == 1]):
        parts = split(S, (d,))
        if parts.sparse:
            if S._pattern.ndim == 1:
                continue
            stay = [i for i in range(S._pattern.ndim) if i != parts.sparse[0]]
            size = tuple(S._pattern.size[i] for i in stay)
            S = make(Pattern._trusted(S._pattern._indices[stay], size), S._values, S.batch_dims)
        elif parts.batch:
            S = S.like(S._values.squeeze(d), batch_dims=S.batch_dims - 1)
        else:
            S = S.like(S._values.squeeze(S.batch_dims + 1 + parts.dense[0]))
    return S


@implements("flip")
def flip(S: SparseTensor, *dims: Any) -> SparseTensor:
    if not dims:
        raise ArgumentError("flip takes the dimensions to be turned round.")
    over = _ints(dims)
    if not over:
        return S
    parts = split(S, as_dims(S, over))
    values = S._values
    outer = [*parts.batch, *(S.batch_dims + 1 + d for d in parts.dense)]
    if outer:
        values = values.flip(outer)
    index = S._pattern._indices.clone()
    for d in parts.sparse:
        index[d] = S._pattern.size[d] - 1 - index[d]
    return rebuild(S.like(values), index, S._pattern.size, None, "flip")


@implements("fliplr")
def fliplr(S: SparseTensor) -> SparseTensor:
    return flip(S, 1)


@implements("flipud")
def flipud(S: SparseTensor) -> SparseTensor:
    return flip(S, 0)


def _ints(args: Sequence[Any]) -> tuple[int, ...]:
    if len(args) == 1 and isinstance(args[0], Sequence):
        args = args[0]
    try:
        if any(
            isinstance(n, bool) or (isinstance(n, Tensor) and (n.dim() or n.dtype == torch.bool))
            for n in args
        ):
            raise TypeError
        return tuple(operator.index(n) for n in args)
    except TypeError as error:
        raise ArgumentError(f"whole numbers are needed, not {args!r}.") from error
