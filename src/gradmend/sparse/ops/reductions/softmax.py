"""softmax and log_softmax along a dimension, over the stored entries only (as torch.sparse.softmax)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse import kernels
from gradmend.sparse.autograd.place import written_out
from gradmend.sparse.autograd.primitive import plain
from gradmend.sparse.autograd.segment import by_kernel, extreme, in_order, lowest, segment_sum, spread
from gradmend.sparse.autograd.undefined import skips_undefined
from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import SparseError
from gradmend.sparse.helpers.dims import entries_back, entries_first, split, wrap
from gradmend.sparse.segments import Segments
from gradmend.sparse.tensor import SparseTensor

_DENSE = frozenset({torch.float32, torch.float64})


def _along(S: SparseTensor, dim: Any, dtype: torch.dtype | None, log: bool) -> SparseTensor:
    if dtype is not None:
        if not isinstance(dtype, torch.dtype):
            raise SparseError(f"softmax takes a dtype, not {type(dtype).__name__}.")
        S = S.to(dtype)
    if not S.is_floating_point():
        raise SparseError(f"softmax takes floating-point numbers, not {S.dtype}: say dtype=, or convert S.")
    if S._pattern.ndim == 2 and S._values.dim() == 1 and type(dim) is int and dim in (0, 1, -1):
        return S.like(segment_softmax(S._values, S._pattern._segments((0 if dim else 1,)), log))
    dim = wrap(S, dim)
    parts = split(S, (dim,))
    f = torch.log_softmax if log else torch.softmax
    if parts.batch:
        return S.like(f(S._values, dim))
    if parts.dense:
        return S.like(f(S._values, S.batch_dims + 1 + parts.dense[0]))
    keep = tuple(d for d in range(S._pattern.ndim) if d not in parts.sparse)
    values = segment_softmax(entries_first(S), S._pattern._segments(keep), log)
    return S.like(entries_back(values, S.batch_dims))


def _small(S: SparseTensor, dim: Any, log: bool) -> SparseTensor | None:
    """With -inf where nothing is stored: fewer calls of torch's. None when the general road must do."""
    values, size = S._values, S._pattern._size
    if (
        type(dim) is not int
        or not -2 <= dim < 2
        or values.dtype not in _DENSE
        or not written_out(size, values)
    ):
        return None
    keys = S._pattern._keys()
    whole = values.new_full(size, -math.inf).put_(keys, values)
    return S.like((whole.log_softmax(dim) if log else whole.softmax(dim)).take(keys))


def segment_softmax(values: Tensor, segs: Segments, log: bool = False) -> Tensor:
    """[nnz, ...]: normalised within each group."""
    if values.shape[0] == 0:
        return values
    if by_kernel(values):
        return SegmentSoftmax.apply(values, segs, log)
    away = values - spread(extreme(values, segs, True, lowest(values.dtype)), segs)
    weight = away.exp()
    total = spread(segment_sum(weight, segs), segs)
    return away - total.log() if log else weight / total


@skips_undefined
class SegmentSoftmax(torch.autograd.Function):
    """The same in one pass forward and one backward; further derivatives are made of differentiable sums."""

    @staticmethod
    def forward(values: Tensor, segs: Segments, log: bool) -> Tensor:
        kernel = kernels.segment_log_softmax if log else kernels.segment_softmax
        return _out_of_order(kernel(segs.ptr, in_order(values, segs), known=True), segs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.segs, ctx.log = inputs
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,), (out,), segs = grads, ctx.saved_tensors, ctx.segs
        if plain(out, grad):
            kernel = kernels.segment_log_softmax_backward if ctx.log else kernels.segment_softmax_backward
            return (
                _out_of_order(kernel(segs.ptr, in_order(out, segs), in_order(grad, segs), known=True), segs),
                None,
                None,
            )
        if ctx.log:
            return grad - out.exp() * spread(segment_sum(grad, segs), segs), None, None
        return out * (grad - spread(segment_sum(out * grad, segs), segs)), None, None


def _out_of_order(made: Tensor, segs: Segments) -> Tensor:
    return made if segs.perm is None else torch.empty_like(made).index_copy_(0, segs.perm, made)


@implements("softmax", also=(torch.sparse.softmax,))
def softmax(
    S: SparseTensor, dim: int, dtype: torch.dtype | None = None, *, _stacklevel: int = 3
) -> SparseTensor:
    small = _small(S, dim, log=False) if dtype is None else None
    return _along(S, dim, dtype, log=False) if small is None else small


@implements("log_softmax", also=(torch.sparse.log_softmax,))
def log_softmax(
    S: SparseTensor, dim: int, dtype: torch.dtype | None = None, *, _stacklevel: int = 3
) -> SparseTensor:
    small = _small(S, dim, log=True) if dtype is None else None
    return _along(S, dim, dtype, log=True) if small is None else small
