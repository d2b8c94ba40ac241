"""max, min, amax, amin, argmax, argmin, aminmax: the zeros that aren't stored take part, ties share as in torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.autograd.primitive import plain
from gradmend.sparse.autograd.segment import extreme, lowest, segment_sum, spread, with_zeros
from gradmend.sparse.dispatch import Op, implements
from gradmend.sparse.errors import OutsideError
from gradmend.sparse.helpers.dims import wrap
from gradmend.sparse.ops.elementwise.binary import _union_op
from gradmend.sparse.ops.reductions.reduce import Reduction
from gradmend.sparse.places import linear
from gradmend.sparse.tensor import SparseTensor


def _amax(S: SparseTensor, dim: Any, keepdim: bool, largest: bool) -> Any:
    r = Reduction(S, dim, keepdim, "max" if largest else "min")
    _need_some(r)
    top = with_zeros(extreme(r.values, r.segs, largest, lowest(S.dtype, not largest)), r.zeros > 0, largest)
    if not (S.is_floating_point() and _differentiable(r.values)):
        return r.done(top, 0)
    hit = (r.values == spread(top, r.segs)) | r.values.isnan()
    # Unstored zeros that tie take their share of the gradient with them.
    ties = segment_sum(hit.to(S.dtype), r.segs) + torch.where(top == 0, r.zeros, 0).to(S.dtype)
    shared = torch.where(hit, r.values / spread(ties.clamp(min=1), r.segs), torch.zeros_like(r.values))
    found = segment_sum(shared, r.segs)
    # Thirds don't always add up: the number itself is exact, only its gradient comes from the sum.
    exact = torch.where(found == top, found, found + (top - found.detach()))
    return r.done(exact, 0)


def _differentiable(values: Tensor) -> bool:
    return torch.compiler.is_compiling() or not plain(values, values)


def _need_some(r: Reduction) -> None:
    if r.n == 0:
        raise OutsideError(
            f"{r.name} of no entries at all: the reduced dimensions of {tuple(r.S.shape)} are empty."
        )


def _pick(S: SparseTensor, dim: int | None, keepdim: bool, largest: bool) -> tuple[Reduction, Tensor, Tensor]:
    """Per group, the extreme and where it is: the first one on ties, its gradient to that one alone."""
    r = Reduction(S, None if dim is None else wrap(S, dim), keepdim, "argmax" if largest else "argmin")
    _need_some(r)
    segs, S = r.segs, r.S
    over = [d for d in range(S._pattern.ndim) if d not in r.keep]
    place = linear(S._pattern._indices[over], tuple(S._pattern.size[d] for d in over))
    top = with_zeros(extreme(r.values, segs, largest, lowest(S.dtype, not largest)), r.zeros > 0, largest)
    hit = (r.values == spread(top, segs)) | r.values.isnan()
    nnz = S.nnz
    shape = (-1, *[1] * (r.values.dim() - 1))
    # Entries of a group ascend in `place`, so the first hit is the one with the smallest entry number.
    number = torch.where(hit, torch.arange(nnz, device=S.device).view(shape), nnz)
    first = extreme(number, segs, False, nnz)
    has = first < nnz
    entry = first.clamp(max=max(nnz - 1, 0))
    # Places are sorted and different, so place == rank exactly below the first gap.
    rank = _rank(segs.ptr, segs.perm, segs.seg, nnz)
    gap = segment_sum((place == rank).long(), segs).view(shape)
    if nnz:
        stored_at = place[entry]
        zero_wins = (top == 0) & (r.zeros > 0) & (~has | (gap < stored_at))
        value = r.values.gather(0, entry) if r.values.dim() > 1 else r.values.index_select(0, entry)
        value = torch.where(zero_wins, torch.zeros_like(value), value)
        where = torch.where(zero_wins, gap, stored_at)
    else:
        value, where = top, gap.expand(top.shape)
    return r, value, where


def _rank(ptr: Tensor, perm: Tensor | None, seg: Tensor, nnz: int) -> Tensor:
    """[nnz]: which entry of its group each is."""
    position = torch.arange(nnz, device=ptr.device)
    if perm is not None:
        inverse = torch.empty_like(perm)
        inverse[perm] = position
        position = inverse
    return position - ptr[seg]


def _reduction(name: str, largest: bool) -> None:
    pair = torch.maximum if largest else torch.minimum

    @implements("amax" if largest else "amin")
    def amax(S: SparseTensor, dim: Any = None, keepdim: bool = False) -> Any:
        return _amax(S, dim, keepdim, largest)

    @implements(name)
    def max(S: SparseTensor, dim: Any = None, keepdim: bool = False) -> Any:
        """Of everything: the number. Along a dimension: (values, indices). With another tensor: entry by entry."""
        if dim is None:
            return _amax(S, None, False, largest)
        if not isinstance(dim, int):
            return _both(S, dim)
        kind = torch.return_types.max if largest else torch.return_types.min
        r, value, where = _pick(S, dim, keepdim, largest)
        return kind((r.done(value, 0), r.done(where, 0)))

    @implements("arg" + name)
    def argmax(S: SparseTensor, dim: int | None = None, keepdim: bool = False) -> Any:
        detached = S.like(S._values.detach())
        r, _, where = _pick(detached, dim, keepdim, largest)
        return r.done(where, 0)

    _both: Op = _union_op(pair)


_reduction("max", True)
_reduction("min", False)


@implements("aminmax")
def aminmax(S: SparseTensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    return torch.return_types.aminmax((_amax(S, dim, keepdim, False), _amax(S, dim, keepdim, True)))
