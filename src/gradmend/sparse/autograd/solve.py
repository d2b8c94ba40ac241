"""The gradient of a solve is a solve with the transpose, and a sampled product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters

from gradmend.sparse.autograd.product import product, sampled
from gradmend.sparse.autograd.undefined import skips_undefined
from gradmend.sparse.kernels.plain import conj
from gradmend.sparse.pattern import Pattern

# (values, right sides [n, k], pattern, transposed?) -> [n, k]
Solver = Callable[[Tensor, Tensor, Pattern, bool], Tensor]


@skips_undefined
class Solve(torch.autograd.Function):
    @staticmethod
    def forward(values: Tensor, b: Tensor, pattern: Pattern, solver: Solver, flip: bool) -> Tensor:
        return solver(values, b, pattern, flip)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        values, _, ctx.pattern, ctx.solver, ctx.flip = inputs
        ctx.save_for_backward(values, output)
        ctx.save_for_forward(values, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        values, x = ctx.saved_tensors
        back = Solve.apply(conj(values), grad, ctx.pattern, ctx.solver, not ctx.flip)
        d_values = None
        if ctx.needs_input_grad[0]:
            A, B = (conj(x), back) if ctx.flip else (back, conj(x))
            d_values = -sampled(ctx.pattern, A, B)
        return d_values, back, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        values, x = ctx.saved_tensors
        d_values, d_b = tangents[:2]
        right = torch.zeros_like(x) if d_b is None else d_b
        if d_values is not None:
            right = right - product(ctx.pattern, d_values, x, ctx.flip)
        return Solve.apply(values, right, ctx.pattern, ctx.solver, ctx.flip)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        values, b, pattern, solver, flip = args
        v_dim, b_dim = in_dims[:2]
        if v_dim is None:
            b = b.movedim(b_dim, -1)
            out = Solve.apply(values, b.flatten(1), pattern, solver, flip)
            return out.unflatten(1, b.shape[1:]), 2
        count = info.batch_size
        values = values.movedim(v_dim, 0).flatten()
        b = b.expand(count, *b.shape) if b_dim is None else b.movedim(b_dim, 0)
        out = Solve.apply(values, b.flatten(0, 1), pattern.repeat(count), solver, flip)
        return out.unflatten(0, (count, -1)), 0


def nested_forward() -> bool:
    """A jvp inside another derivative: the one order that a Function with a jvp gets wrong (torch 2.13)."""
    levels = [i.key() for i in retrieve_all_functorch_interpreters()]
    kinds = (TransformType.Jvp, TransformType.Grad)
    return any(k == TransformType.Jvp and any(o in kinds for o in levels[:i]) for i, k in enumerate(levels))
