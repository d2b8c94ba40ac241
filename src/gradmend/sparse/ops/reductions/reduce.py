"""sum, mean, prod, any, all, var, std, logsumexp: over everything, rows, columns, any dimensions.

Zeros that aren't stored count, as they do in the dense tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.autograd.segment import (
    counts,
    extreme,
    in_order,
    lowest,
    safe_root,
    segment_sum,
    spread,
    with_zeros,
)
from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import ArgumentError, SparseError
from gradmend.sparse.helpers.dims import (
    Split,
    as_dims,
    entries_first,
    flag,
    hand_back,
    reduced_size,
    split,
)
from gradmend.sparse.segments import Segments
from gradmend.sparse.tensor import SparseTensor


class Reduction:
    """One reduction over sparse dimensions, ready to compute: which groups, how many zeros in each."""

    def __init__(self, S: SparseTensor, dim: Any, keepdim: bool, name: str) -> None:
        flag("keepdim", keepdim)
        dims = as_dims(S, dim)
        parts = split(S, dims)
        self.dense = S._pattern.ndim - len(parts.sparse) <= 1
        if parts.batch or parts.dense:
            # Mixed kinds: write the dense dimensions out as sparse ones, O(values).
            S = S.sparsify()
            parts = Split((), dims, ())
        self.S, self.keepdim, self.name = S, keepdim, name
        self.keep = tuple(d for d in range(S._pattern.ndim) if d not in parts.sparse)
        self.n = reduced_size(S, parts.sparse)
        self.segs: Segments = S._pattern._segments(self.keep)
        self.values = entries_first(S)

    @property
    def stored(self) -> Tensor:
        return counts(self.segs, self.values)

    @property
    def zeros(self) -> Tensor:
        """[groups, 1, ...]: how many zeros of each group are not stored."""
        return self.n - self.stored

    def done(self, found: Tensor, fill: Any) -> Any:
        return hand_back(self.S, found, self.segs, self.keep, self.keepdim, fill, self.name, self.dense)


def _over_values(S: SparseTensor, parts: Split, f: Any, keepdim: bool) -> SparseTensor:
    """A reduction of batch or dense dimensions only: the pattern stays."""
    b = S.batch_dims
    dims = [*parts.batch, *(b + 1 + d for d in parts.dense)]
    values = f(S._values, dims, keepdim)
    return S.like(values, batch_dims=b if keepdim else b - len(parts.batch))


@implements("sum", also=(torch._sparse_sum,))
def sum(S: SparseTensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    if dtype is not None:
        S = S.to(dtype)
    elif not S.dtype.is_floating_point and not S.dtype.is_complex:
        S = S.to(torch.int64)
    if type(dim) is int and S._pattern.ndim == 2 and S._values.dim() == 1 and -2 <= dim < 2 and not keepdim:
        # Row and column sums of a matrix: what is asked most often takes the shortest way.
        segs = S._pattern._segments((1 - dim % 2,))
        if segs.ids is None:
            return segment_sum(S._values, segs)
    flag("keepdim", keepdim)
    if dim is None or (isinstance(dim, Sequence) and len(dim) == 0):
        total = S._values.sum()
        return total.reshape((1,) * S.ndim) if keepdim else total
    parts = split(S, as_dims(S, dim))
    if parts.batch or parts.dense:
        part = _over_values(S, Split(parts.batch, (), parts.dense), lambda v, d, k: v.sum(d, keepdim=k), True)
        if parts.sparse:
            out = sum(part, tuple(S.batch_dims + d for d in parts.sparse), True)
        else:
            out = part
        return out if keepdim else _squeeze(out, as_dims(S, dim))
    r = Reduction(S, dim, keepdim, "sum")
    return r.done(segment_sum(r.values, r.segs), 0)


def _squeeze(out: Any, dims: tuple[int, ...]) -> Any:
    for d in reversed(dims):
        out = out.squeeze(d)
    return out


@implements("mean")
def mean(S: SparseTensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    if dtype is None and not (S.is_floating_point() or S.is_complex()):
        raise SparseError(f"mean of {S.dtype} has no whole result: say dtype=, or convert with S.float().")
    dims = as_dims(S, dim)
    n = math.prod([S.shape[d] for d in dims])
    parts = split(S, dims)
    if not parts.batch and not parts.dense:
        # Divided before it is written out to all rows, which most often are longer.
        r = Reduction(S if dtype is None else S.to(dtype), dims, keepdim, "mean")
        return r.done(segment_sum(r.values, r.segs) / n, 0)
    total = sum(S, dims, keepdim, dtype=dtype)
    return total.like(total._values / n) if isinstance(total, SparseTensor) else total / n


@implements("prod")
def prod(S: SparseTensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """Zero wherever a zero isn't stored; full groups are multiplied out."""
    if dtype is not None:
        S = S.to(dtype)
    elif not S.dtype.is_floating_point and not S.dtype.is_complex:
        S = S.to(torch.int64)
    r = Reduction(S, dim, keepdim, "prod")
    if r.n == 0:
        return r.done(r.values.new_ones(r.segs.groups, *r.values.shape[1:]), 1)
    whole = (r.segs.ptr.diff() == r.n).nonzero().squeeze(1)
    rest = r.values.shape[1:]
    found = r.values.new_zeros(r.segs.groups, *rest)
    # Also when none is full: the result is then zero, and so is its gradient, but it has one.
    length = r.n if whole.numel() else 1
    place = r.segs.ptr[whole][:, None] + torch.arange(length, device=r.segs.ptr.device)
    if r.segs.perm is not None:
        place = r.segs.perm[place]
    table = r.values.index_select(0, place.flatten()).unflatten(0, place.shape)
    return r.done(found.index_copy(0, whole, table.prod(1)), 0)


def _some(dim: Any) -> None:
    """torch's any and all take no dimensions to mean none, its sums take them to mean all: here it is neither."""
    if isinstance(dim, Sequence) and len(dim) == 0:
        raise SparseError("any and all of no dimensions: name the dimensions, or leave dim out.")


@implements("any")
def any(S: SparseTensor, dim: Any = None, keepdim: bool = False) -> Any:
    _some(dim)
    r = Reduction(S.like(S._values != 0), dim, keepdim, "any")
    return r.done(extreme(r.values, r.segs, True, False), False)


@implements("all")
def all(S: SparseTensor, dim: Any = None, keepdim: bool = False) -> Any:
    _some(dim)
    r = Reduction(S.like(S._values != 0), dim, keepdim, "all")
    found = extreme(r.values, r.segs, False, True)
    return r.done(found & (r.zeros == 0), r.n == 0)


@implements("logsumexp")
def logsumexp(S: SparseTensor, dim: Any, keepdim: bool = False) -> Any:
    if dim is None:
        raise ArgumentError("logsumexp takes a dimension, or several.")
    if S.is_complex():
        raise SparseError("logsumexp takes real numbers: which of complex ones is the largest?")
    r = Reduction(S, dim, keepdim, "logsumexp")
    top = with_zeros(extreme(r.values, r.segs, True, lowest(S.dtype)), r.zeros > 0, True)
    top = torch.where(top.isinf(), torch.zeros_like(top), top)
    zeros = r.zeros.to(S.dtype)
    total = segment_sum((r.values - spread(top, r.segs)).exp(), r.segs) + zeros * (-top).exp()
    return r.done(total.log() + top, math.log(r.n) if r.n else -math.inf)


@implements("var")
def var(
    S: SparseTensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> Any:
    flag("unbiased", unbiased)
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased else 0
    if not (S.is_floating_point() or S.is_complex()):
        raise SparseError(f"var and std take floating-point or complex numbers, not {S.dtype}.")
    r = Reduction(S, dim, keepdim, "var")
    middle = segment_sum(r.values, r.segs) / r.n
    away = _squared(r.values - spread(middle, r.segs))
    total = segment_sum(away, r.segs) + r.zeros * _squared(middle)
    left = max(r.n - correction, 0)
    return r.done(total / left, 0.0 if left else math.nan)


def _squared(x: Tensor) -> Tensor:
    """|x|^2 without abs, which has no second derivative at 0."""
    return (x * x.conj()).real if x.is_complex() else x * x


@implements("std")
def std(
    S: SparseTensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> Any:
    found = var(S, dim, unbiased, keepdim, correction=correction)
    return found.map(safe_root) if isinstance(found, SparseTensor) else safe_root(found)


def ordered(r: Reduction) -> Tensor:
    """Values in grouped order."""
    return in_order(r.values, r.segs)
