"""topk and cumsum along a dimension: dense results, since the zeros that aren't stored take part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.autograd.segment import segment_sum
from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import SparseError
from gradmend.sparse.helpers.dims import wrap
from gradmend.sparse.ops.conversions.dense import to_dense
from gradmend.sparse.ops.reductions.extremes import _rank
from gradmend.sparse.ops.structure.shape import sparsify
from gradmend.sparse.tensor import SparseTensor


@implements("cumsum")
def cumsum(S: SparseTensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Dense: behind the first entry of a row hardly a running sum is zero."""
    return torch.cumsum(to_dense(S), wrap(S, dim), dtype=dtype)


@implements("topk")
def topk(S: SparseTensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """(values, indices), dense along `dim`; zeros that aren't stored compete, and every value has its gradient."""
    S = sparsify(S)
    d = wrap(S, dim)
    n = S.shape[d]
    if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= n:
        raise SparseError(f"topk takes a k from 0 to the {n} of dimension {dim}, not {k!r}.")
    keep = tuple(i for i in range(S.ndim) if i != d)
    segs = S._pattern._segments(keep)
    if segs.ids is not None:  # far more rows than entries: most hold zeros only, and the result has them all
        return torch.topk(to_dense(S), k, d, largest, sorted)
    values, place = S._values, S._pattern._indices[d]
    order = _ordered(values.detach(), segs.seg, largest)
    ahead = ((values.detach() > 0) | values.detach().isnan()) if largest else (values.detach() < 0)
    front = segment_sum(ahead.long(), segs)[:, None]  # stored numbers that beat zero
    stored = segs.ptr.diff()[:, None]
    zeros = n - stored
    slot = torch.arange(k, device=S._pattern.device)[None]
    is_zero = (slot >= front) & (slot < front + zeros)
    entry = segs.ptr[:-1, None] + torch.where(slot < front, slot, slot - zeros)
    entry = entry.clamp(0, max(S.nnz - 1, 0))
    if S.nnz:
        chosen = order[entry]
        found = values.index_select(0, chosen.flatten()).view(chosen.shape)
        top = torch.where(is_zero, torch.zeros_like(found), found)
        where = torch.where(is_zero, _free(segs, place, slot - front, n), place[chosen])
    else:
        top = values.new_zeros(segs.total, k) + values.sum()
        where = slot.expand(segs.total, k).clone()
    shape = (*(S.shape[i] for i in keep), k)
    pair: Any = (top.reshape(shape).movedim(-1, d), where.reshape(shape).movedim(-1, d))
    return torch.return_types.topk(pair)


def _ordered(values: Tensor, seg: Tensor, largest: bool) -> Tensor:
    """Entries group by group, the best of each first."""
    by_value = torch.sort(values, descending=largest, stable=True).indices
    return by_value[torch.sort(seg[by_value], stable=True).indices]


def _free(segs: Any, place: Tensor, rank: Tensor, n: int) -> Tensor:
    """The place of the rank-th zero of each group that is not stored, [groups, k]."""
    nnz = place.shape[0]
    by_place = segs.perm if segs.perm is not None else torch.arange(nnz, device=place.device)
    inside = _rank(segs.ptr, segs.perm, segs.seg, nnz)[by_place]
    # Before an entry of a group lie place - inside free ones; ascending over all groups, since n + 1 is larger.
    before = segs.seg[by_place] * (n + 1) + place[by_place] - inside
    group = torch.arange(segs.total, device=place.device)[:, None]
    asked = group * (n + 1) + rank.clamp(0, n)
    passed = torch.searchsorted(before.contiguous(), asked.contiguous(), right=True) - segs.ptr[:-1, None]
    return rank.clamp(0, n) + passed
