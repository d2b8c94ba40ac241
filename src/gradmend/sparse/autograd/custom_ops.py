"""The primitives as custom ops, for graphs: torch.compile sees their shapes, not their insides."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse import kernels
from gradmend.sparse.kernels.checks import seen
from gradmend.sparse.kernels.plain import conj


@torch.library.custom_op("gradmend::spmm", mutates_args=())
def spmm(
    ptr: Tensor, col: Tensor, tptr: Tensor, trow: Tensor, perm: Tensor, values: Tensor, X: Tensor, flip: bool
) -> Tensor:
    if flip:
        return kernels.spmm(tptr, trow, values, X, perm, seen(tptr, trow, X.shape[0], perm))
    return kernels.spmm(ptr, col, values, X, None, seen(ptr, col, X.shape[0]))


@spmm.register_fake
def _(
    ptr: Tensor, col: Tensor, tptr: Tensor, trow: Tensor, perm: Tensor, values: Tensor, X: Tensor, flip: bool
) -> Tensor:
    rows = (tptr if flip else ptr).shape[0] - 1
    return X.new_empty(rows, X.shape[1])


@torch.library.custom_op("gradmend::sddmm", mutates_args=())
def sddmm(ptr: Tensor, col: Tensor, tptr: Tensor, trow: Tensor, perm: Tensor, A: Tensor, B: Tensor) -> Tensor:
    return kernels.sddmm(ptr, col, A, B, None, seen(ptr, col, B.shape[0]))


@sddmm.register_fake
def _(ptr: Tensor, col: Tensor, tptr: Tensor, trow: Tensor, perm: Tensor, A: Tensor, B: Tensor) -> Tensor:
    return A.new_empty(col.shape[0])


def _spmm_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.flip = inputs
    ctx.save_for_backward(*tensors)


def _spmm_backward(ctx: Any, grad: Tensor) -> Any:
    *places, values, X = ctx.saved_tensors
    d_values = d_X = None
    if ctx.needs_input_grad[5]:
        A, B = (conj(X), grad) if ctx.flip else (grad, conj(X))
        d_values = sddmm(*places, A, B)
    if ctx.needs_input_grad[6]:
        d_X = spmm(*places, conj(values), grad, not ctx.flip)
    return None, None, None, None, None, d_values, d_X, None


def _sddmm_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _sddmm_backward(ctx: Any, grad: Tensor) -> Any:
    *places, A, B = ctx.saved_tensors
    d_A = spmm(*places, grad, conj(B), False) if ctx.needs_input_grad[5] else None
    d_B = spmm(*places, grad, conj(A), True) if ctx.needs_input_grad[6] else None
    return None, None, None, None, None, d_A, d_B


spmm.register_autograd(_spmm_backward, setup_context=_spmm_setup)
sddmm.register_autograd(_sddmm_backward, setup_context=_sddmm_setup)
