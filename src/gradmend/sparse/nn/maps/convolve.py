"""Two primitives that are each other's derivatives: rows through a kernel map, and what a weight's gradient sums."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.autograd.undefined import skips_undefined
from gradmend.sparse.errors import SparseError
from gradmend.sparse.kernels import convolve as kernel
from gradmend.sparse.nn.maps.kernel_map import KernelMap


def convolve(X: Tensor, W: Tensor, km: KernelMap) -> Tensor:
    """X [inputs, c_in], W [offsets, c_in, c_out] -> [outputs, c_out]."""
    if X.shape[0] != km.inputs:
        raise SparseError(f"there are {X.shape[0]} rows of features for {km.inputs} places.")
    if torch.is_autocast_enabled(X.device.type):
        low = torch.get_autocast_dtype(X.device.type)
        X, W = X.to(low), W.to(low)
    if X.dtype != W.dtype:
        raise SparseError(
            f"features are {X.dtype}, and the weight is {W.dtype}: convert one with .to(dtype)."
        )
    made: Tensor = _Gather.apply(X, W, km)
    return made


@skips_undefined
class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(X: Tensor, W: Tensor, km: KernelMap) -> Tensor:
        return kernel.gather(km.ptr, km.source, km.target, X, W, km.outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        X, W, ctx.map = inputs
        ctx.save_for_backward(X, W)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,), (X, W) = grads, ctx.saved_tensors
        d_X = _Gather.apply(grad, W.transpose(1, 2), ctx.map.turned()) if ctx.needs_input_grad[0] else None
        d_W = _Outer.apply(X, grad, ctx.map) if ctx.needs_input_grad[1] else None
        return d_X, d_W, None


@skips_undefined
class _Outer(torch.autograd.Function):
    @staticmethod
    def forward(X: Tensor, G: Tensor, km: KernelMap) -> Tensor:
        return kernel.outer(km.ptr, km.source, km.target, X, G)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        X, G, ctx.map = inputs
        ctx.save_for_backward(X, G)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,), (X, G) = grads, ctx.saved_tensors
        d_X = _Gather.apply(G, grad.transpose(1, 2), ctx.map.turned()) if ctx.needs_input_grad[0] else None
        d_G = _Gather.apply(X, grad, ctx.map) if ctx.needs_input_grad[1] else None
        return d_X, d_G, None
