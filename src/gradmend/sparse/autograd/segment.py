"""Sums and extremes of groups of entries, differentiable, on values of the shape [nnz, ...]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse import kernels
from gradmend.sparse.autograd.place import in_place_is_fine
from gradmend.sparse.autograd.primitive import apply
from gradmend.sparse.autograd.undefined import skips_undefined
from gradmend.sparse.errors import SparseError
from gradmend.sparse.kernels.plain import wide
from gradmend.sparse.segments import Segments

_FEW = 1 << 14  # entries below which one scatter costs less than planning a pass over rows


def by_kernel(values: Tensor) -> bool:
    """Many entries, and nobody traces or transforms: a pass over the rows beats torch's scatters."""
    return values.dim() == 1 and values.shape[0] > _FEW and in_place_is_fine()


def in_order(values: Tensor, segs: Segments) -> Tensor:
    return values if segs.perm is None else values.index_select(0, segs.perm)


def segment_sum(values: Tensor, segs: Segments) -> Tensor:
    """[nnz, ...] -> [groups, ...]; bf16 and fp16 are added in float32."""
    if values.dtype == torch.bool:
        values = values.long()
    if segs.groups == 1 and segs.total == 1:
        return values.sum(0, keepdim=True, dtype=values.dtype)
    if wide(values.dtype) is not values.dtype:
        return segment_sum(values.float(), segs).to(values.dtype)
    if by_kernel(values):
        return apply(SegmentSum, values, segs)
    return values.new_zeros(segs.groups, *values.shape[1:]).index_add(0, segs.seg, values)


@skips_undefined
class SegmentSum(torch.autograd.Function):
    @staticmethod
    def forward(values: Tensor, segs: Segments) -> Tensor:
        if segs.perm is None:
            return kernels.segment_sum(segs.ptr, values, known=True)
        # Putting entries in order first costs more than scattering them does.
        return kernels.scatter_sum(segs.seg, values, segs.groups, known=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.segs = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return spread(grads[0], ctx.segs), None


def spread(per_group: Tensor, segs: Segments) -> Tensor:
    """[groups, ...] -> [nnz, ...]: each entry gets its group's number."""
    if segs.seg.shape[0] > _FEW and not per_group.requires_grad and in_place_is_fine():
        return kernels.gather(segs.seg, per_group, segs.groups)
    return per_group.index_select(0, segs.seg)


def counts(segs: Segments, like: Tensor) -> Tensor:
    """[groups, 1, ...]: entries per group, shaped to go with values."""
    return segs.ptr.diff().view(-1, *[1] * (like.dim() - 1))


def lowest(dtype: torch.dtype, largest: bool = False) -> float | int | bool:
    """What any number of this dtype is at least (or at most)."""
    if dtype.is_complex:
        raise SparseError(f"{dtype} has no largest and smallest: take S.abs(), S.real or S.imag.")
    if dtype.is_floating_point:
        return float("inf") if largest else float("-inf")
    if dtype == torch.bool:
        return largest
    return torch.iinfo(dtype).max if largest else torch.iinfo(dtype).min


def extreme(values: Tensor, segs: Segments, largest: bool, fill: float | int | bool) -> Tensor:
    """The largest (or smallest) stored number of each group, without gradient; NaN wins.

    `fill` is what loses against everything; groups without entries keep it.
    """
    values = values.detach()
    if by_kernel(values) and values.dtype != torch.bool:
        kernel = kernels.segment_max if largest else kernels.segment_min
        return kernel(segs.ptr, in_order(values, segs), fill, known=True)
    if values.dtype == torch.bool:
        return extreme(values.to(torch.uint8), segs, largest, int(fill)).bool()
    if segs.perm is None and values.dim() == 1 and values.dtype.is_floating_point and values.is_cpu:
        return torch.segment_reduce(values, "max" if largest else "min", offsets=segs.ptr, initial=fill)
    index = segs.seg
    if values.dim() > 1:
        index = index.view(-1, *[1] * (values.dim() - 1)).expand(values.shape)
    start = torch.full((segs.groups, *values.shape[1:]), fill, dtype=values.dtype, device=values.device)
    return start.scatter_reduce(0, index, values, "amax" if largest else "amin")


def with_zeros(found: Tensor, some: Tensor, largest: bool) -> Tensor:
    """Lets the zeros that aren't stored compete, in groups that have some."""
    zero = torch.zeros((), dtype=found.dtype, device=found.device)
    if found.dtype == torch.bool:
        return found & ~some if not largest else found
    rival = torch.maximum(found, zero) if largest else torch.minimum(found, zero)
    return torch.where(some, rival, found)


def safe_root(x: Tensor, p: float = 2.0) -> Tensor:
    """x ** (1 / p) with gradient 0 at 0, as torch's norms have it."""
    live = x != 0
    base = torch.where(live, x, torch.ones_like(x))
    root = base.sqrt() if p == 2 else base ** (1 / p)
    return torch.where(live, root, torch.zeros_like(x))
