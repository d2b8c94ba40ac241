"""Which of a tensor's dimensions are batch, sparse and dense, and how a reduced result is handed back."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradmend.sparse.autograd.place import put
from gradmend.sparse.errors import ArgumentError, OutsideError, SparseError, dense_result
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.segments import Segments
from gradmend.sparse.tensor import SparseTensor, make


class Split(NamedTuple):
    batch: tuple[int, ...]  # dimensions of values before nnz
    sparse: tuple[int, ...]  # dimensions of the pattern
    dense: tuple[int, ...]  # dimensions after the pattern's, counted from 0


def wrap(S: SparseTensor, dim: int) -> int:
    if not isinstance(dim, int) or isinstance(dim, bool):
        dim = whole(dim)
    if not -S.ndim <= dim < S.ndim:
        raise OutsideError(f"dimension {dim} doesn't exist: S has the shape {tuple(S.shape)}.")
    return dim % S.ndim


def whole(n: Any) -> int:
    """A number of a dimension, as torch takes it: an int, or a tensor that is one."""
    try:
        if isinstance(n, bool) or (isinstance(n, Tensor) and n.dim()):
            raise TypeError
        return operator.index(n)
    except TypeError as error:
        raise ArgumentError(f"a dimension is a whole number, not {n!r}.") from error


def number(name: str, n: Any) -> int:
    """A whole number that an operation is told: an offset, a diagonal."""
    try:
        return whole(n)
    except ArgumentError as error:
        raise ArgumentError(f"{name} is a whole number, not {n!r}.") from error


def flag(name: str, on: Any) -> None:
    if not isinstance(on, bool):
        raise ArgumentError(f"{name} is True or False, not {on!r}.")


def no_more(name: str, more: dict[str, Any]) -> None:
    """Options that torch has and a sparse result can't follow, such as `out`: None says nothing."""
    for option, value in more.items():
        if value is not None:
            raise ArgumentError(f"{name} of a sparse tensor takes no {option}=.")


def as_dims(S: SparseTensor, dim: Any) -> tuple[int, ...]:
    if dim is None or (isinstance(dim, Sequence) and len(dim) == 0):
        return tuple(range(S.ndim))
    dims = tuple(dim) if isinstance(dim, Sequence) else (dim,)
    wrapped = tuple(sorted([wrap(S, d) for d in dims]))
    if len(set(wrapped)) != len(wrapped):
        raise SparseError(f"a dimension appears twice in dim={dim}.")
    return wrapped


def split(S: SparseTensor, dims: Sequence[int]) -> Split:
    b, n = S.batch_dims, S._pattern.ndim
    return Split(
        tuple(d for d in dims if d < b),
        tuple(d - b for d in dims if b <= d < b + n),
        tuple(d - b - n for d in dims if d >= b + n),
    )


def entries_first(S: SparseTensor) -> Tensor:
    """[nnz, *batch, *dense]"""
    return S._values if S.batch_dims == 0 else S._values.movedim(S.batch_dims, 0)


def entries_back(values: Tensor, batch_dims: int) -> Tensor:
    return values if batch_dims == 0 else values.movedim(0, batch_dims)


def hand_back(
    S: SparseTensor,
    found: Tensor,
    segs: Segments,
    keep: tuple[int, ...],
    keepdim: bool,
    fill: Any,
    name: str,
    dense: bool,
) -> Any:
    """[groups, *batch, *dense] -> the result: dense if asked, else sparse over the kept dimensions.

    Groups without entries hold `fill`.
    """
    b, n = S.batch_dims, S._pattern.ndim
    kept = tuple(S._pattern.size[d] for d in keep)
    shown = tuple(S._pattern.size[d] if d in keep else 1 for d in range(n)) if keepdim else kept
    if dense:
        if segs.ids is not None:
            found = put(segs.total, segs.ids, found, fill)
        out = entries_back(found, b)
        return out.reshape((*out.shape[:b], *shown, *out.shape[b + 1 :]))
    if fill != 0:
        raise dense_result(name, f"rows without entries give {fill:.4g}")
    ids = segs.ids
    if ids is None:
        ids = segs.ptr.diff().nonzero().squeeze(1)
        found = found.index_select(0, ids)
    pattern = Pattern._from_keys(ids, kept)
    if keepdim:
        rows = iter(pattern._indices)
        index = torch.stack([next(rows) if d in keep else torch.zeros_like(ids) for d in range(n)])
        pattern = Pattern._trusted(index, shown)
    return make(pattern, entries_back(found, b), b)


def reduced_size(S: SparseTensor, dims: Sequence[int]) -> int:
    return math.prod([S._pattern.size[d] for d in dims])
