"""repeat, tile, expand, roll: entries copied or moved along a dimension."""

from __future__ import annotations

import math
from typing import Any

import torch

from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import ArgumentError, PatternError, SparseError
from gradmend.sparse.helpers.dims import split, wrap
from gradmend.sparse.helpers.rebuild import rebuild
from gradmend.sparse.ops.structure.shape import _ints, reshape, unsqueeze
from gradmend.sparse.places import check_size
from gradmend.sparse.tensor import SparseTensor, make

_MOST = 1 << 48  # entries


@implements("repeat")
def repeat(S: SparseTensor, *sizes: Any) -> SparseTensor:
    """Copies along each dimension, as torch.Tensor.repeat; the copies' gradients are summed."""
    times = _ints(sizes)
    if len(times) < S.ndim or any(n < 0 for n in times):
        raise SparseError(f"repeat{times} takes a number, not negative, for each of the {S.ndim} dimensions.")
    while S.ndim < len(times):
        S = unsqueeze(S, 0)
    b, n = S.batch_dims, S._pattern.ndim
    values = S._values
    outer = (*times[:b], 1, *times[b + n :])
    if any(t != 1 for t in outer):
        values = values.repeat(outer)
    inner = times[b : b + n]
    S = S.like(values)
    return S if all(t == 1 for t in inner) else _copies(S, inner)


def _copies(S: SparseTensor, times: tuple[int, ...]) -> SparseTensor:
    size = S._pattern.size
    new = tuple(m * t for m, t in zip(size, times, strict=True))
    check_size("repeat", new)
    index = S._pattern._indices
    if S.nnz == 0:
        return rebuild(S, index, new, None, "repeat")
    if (many := S.nnz * math.prod(times)) > _MOST:
        raise PatternError(f"repeat to the shape {new} would store {many} entries, which no memory holds.")
    take = torch.arange(S.nnz, device=index.device)
    for d, t in enumerate(times):
        if t == 1:
            continue
        step = torch.zeros(len(size), 1, 1, dtype=torch.int64, device=index.device)
        step[d] = size[d]
        copy = torch.arange(t, device=index.device).view(1, -1, 1)
        index = (index[:, None] + copy * step).flatten(1)
        take = take.repeat(t)
    return rebuild(S, index, new, take, "repeat")


@implements("tile")
def tile(S: SparseTensor, *dims: Any) -> SparseTensor:
    if not dims:
        raise ArgumentError("tile takes a number for each dimension.")
    times = _ints(dims)
    return repeat(S, (1,) * (S.ndim - len(times)) + times)


@implements("expand", "broadcast_to")
def expand(S: SparseTensor, *sizes: Any) -> SparseTensor:
    """Dimensions of size 1 made longer. New ones in front are batch dimensions, which copy nothing."""
    new = _ints(sizes)
    if len(new) < S.ndim:
        raise SparseError(f"expand{new} names fewer dimensions than the shape {tuple(S.shape)} has.")
    more = len(new) - S.ndim
    times = []
    for n, m in zip(new[more:], S.shape, strict=True):
        if n not in (-1, m) and (m != 1 or n < 0):
            raise SparseError(f"the shape {tuple(S.shape)} can't be expanded to {new}.")
        times.append(1 if n in (-1, m) else n)
    if any(n < 0 for n in new[:more]):
        raise SparseError(f"expand{new}: new dimensions need their size.")
    S = repeat(S, times)
    if not more:
        return S
    values = S._values
    return S.like(values.expand(*new[:more], *values.shape), batch_dims=S.batch_dims + more)


@implements("expand_as")
def expand_as(S: SparseTensor, other: Any) -> SparseTensor:
    return expand(S, tuple(other.shape))


@implements("roll")
def roll(S: SparseTensor, shifts: Any, dims: Any = None) -> SparseTensor:
    """Entries moved along dimensions, those that fall off come in again in front."""
    steps = _ints((shifts,))
    if dims is None or (isinstance(dims, list | tuple) and len(dims) == 0):
        if len(steps) != 1:
            raise SparseError("roll takes a dimension for each of several shifts.")
        return reshape(roll(reshape(S, (-1,)), steps, (0,)), tuple(S.shape))
    over = [wrap(S, d) for d in _ints((dims,))]
    if len(over) != len(steps):
        raise SparseError(f"roll was given {len(steps)} shifts for {len(over)} dimensions.")
    values, index = S._values, S._pattern._indices.clone()
    for step, d in zip(steps, over, strict=True):
        parts = split(S, (d,))
        if parts.sparse:
            n = S._pattern.size[parts.sparse[0]]
            index[parts.sparse[0]] = (index[parts.sparse[0]] + step) % max(n, 1)
        else:
            values = values.roll(step, d if parts.batch else S.batch_dims + 1 + parts.dense[0])
    return rebuild(make(S._pattern, values, S.batch_dims), index, S._pattern.size, None, "roll")
