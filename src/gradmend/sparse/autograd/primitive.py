"""Two primitives, three products: S @ X, S.T @ X and (A @ B.T) at the entries are each other's derivatives.

Eager code takes autograd.Functions (reverse mode of any order, vmap), compiled code takes custom ops (fullgraph),
code without gradients calls the kernel, and forward mode takes torch's own ops: on torch 2.13 the jvp of a
Function runs with forward mode off, so that a derivative of that derivative is lost in silence.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gradmend.sparse import kernels
from gradmend.sparse.autograd import custom_ops
from gradmend.sparse.autograd.undefined import skips_undefined
from gradmend.sparse.kernels.plain import conj
from gradmend.sparse.pattern import Pattern


def spmm(values: Tensor, X: Tensor, pattern: Pattern, flip: bool = False) -> Tensor:
    """[nnz], [cols, k] -> [rows, k]; flipped, the transposed product: [rows, k] -> [cols, k]."""
    if values.is_meta:
        return _meta(values[:1], X[:1], pattern._size[1 if flip else 0], X.shape[1])
    if torch.compiler.is_compiling() and not transforming():
        tptr, trow, perm = pattern._transposed()
        return custom_ops.spmm(pattern._ptr, pattern._col, tptr, trow, perm, values, X, flip)
    if forward_mode() or torch.compiler.is_compiling():
        source, target = (pattern._row, pattern._col) if flip else (pattern._col, pattern._row)
        terms = values[:, None] * X.index_select(0, source)
        return terms.new_zeros(pattern.size[1 if flip else 0], X.shape[1]).index_add(0, target, terms)
    if plain(values, X):
        return _spmm(values, X, pattern, flip)
    return apply(SpMM, values, X, pattern, flip)


def sddmm(A: Tensor, B: Tensor, pattern: Pattern) -> Tensor:
    """[rows, k], [cols, k] -> [nnz]: A @ B.T at the entries."""
    if A.is_meta:
        return _meta(A[:1], B[:1], pattern.nnz, 1).squeeze(1)
    if torch.compiler.is_compiling() and not transforming():
        tptr, trow, perm = pattern._transposed()
        return custom_ops.sddmm(pattern._ptr, pattern._col, tptr, trow, perm, A, B)
    if forward_mode() or torch.compiler.is_compiling():
        return (A.index_select(0, pattern._row) * B.index_select(0, pattern._col)).sum(1)
    if plain(A, B):
        return kernels.sddmm(pattern._ptr, pattern._col, A, B, pattern._row, pattern._size)
    return apply(SDDMM, A, B, pattern)


def _meta(a: Tensor, b: Tensor, rows: int, columns: int) -> Tensor:
    """No numbers, but a shape, a dtype, and a graph."""
    return (a.sum() * b.sum()).expand(rows, columns).clone()


def transforming() -> bool:
    """Inside torch.func; a custom op can't be differentiated by a transform that is itself compiled (2.13)."""
    return torch._C._are_functorch_transforms_active()


def forward_mode() -> bool:
    """Somebody is computing tangents (torch.func.jvp opens such a level too)."""
    return forward_ad._current_level >= 0


def apply(function: Any, *args: Any) -> Tensor:
    """Function.apply less its study of the signature, which takes longer than a small product (2.13)."""
    if torch._C._are_functorch_transforms_active():
        return function.apply(*args)
    return super(torch.autograd.Function, function).apply(*args)


def plain(a: Tensor, b: Tensor) -> bool:
    """Nobody differentiates or transforms: the bare kernel will do."""
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return False
    return not transforming() and not forward_mode()


def _spmm(values: Tensor, X: Tensor, pattern: Pattern, flip: bool) -> Tensor:
    if flip:
        ptr, row, perm = pattern._transposed()
        return kernels.spmm(ptr, row, values, X, perm, pattern._size[::-1])
    return kernels.spmm(pattern._ptr, pattern._col, values, X, None, pattern._size)


@skips_undefined
class SpMM(torch.autograd.Function):
    @staticmethod
    def forward(values: Tensor, X: Tensor, pattern: Pattern, flip: bool) -> Tensor:
        return _spmm(values, X, pattern, flip)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        values, X, ctx.pattern, ctx.flip = inputs
        ctx.save_for_backward(values, X)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        values, X = ctx.saved_tensors
        d_values = d_X = None
        if all(ctx.needs_input_grad[:2]) and not ctx.flip and plain(values, grad):
            # No graph of this backward is wanted: both gradients in one pass over the entries.
            ptr, col = ctx.pattern._ptr, ctx.pattern._col
            tptr, trow, perm = ctx.pattern._transposed()
            return (
                *kernels.spmm_backward(
                    ptr, col, tptr, trow, perm, values, X, grad, ctx.pattern._row, ctx.pattern._size
                ),
                None,
                None,
            )
        if ctx.needs_input_grad[0]:
            A, B = (conj(X), grad) if ctx.flip else (grad, conj(X))
            d_values = sddmm(A, B, ctx.pattern)
        if ctx.needs_input_grad[1]:
            d_X = spmm(conj(values), grad, ctx.pattern, not ctx.flip)
        return d_values, d_X, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        values, X, pattern, flip = args
        v_dim, x_dim = in_dims[:2]
        count = info.batch_size
        if v_dim is None:
            # One matrix, many right sides: they are only more columns.
            X = X.movedim(x_dim, -1)
            out = spmm(values, X.flatten(1), pattern, flip)
            return out.unflatten(1, X.shape[1:]), 2
        values = values.movedim(v_dim, 0).flatten()
        X = X.expand(count, *X.shape) if x_dim is None else X.movedim(x_dim, 0)
        out = spmm(values, X.flatten(0, 1), pattern.repeat(count), flip)
        return out.unflatten(0, (count, -1)), 0


@skips_undefined
class SDDMM(torch.autograd.Function):
    @staticmethod
    def forward(A: Tensor, B: Tensor, pattern: Pattern) -> Tensor:
        return kernels.sddmm(pattern._ptr, pattern._col, A, B, pattern._row, pattern._size)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        A, B, ctx.pattern = inputs
        ctx.save_for_backward(A, B)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        A, B = ctx.saved_tensors
        d_A = spmm(grad, conj(B), ctx.pattern) if ctx.needs_input_grad[0] else None
        d_B = spmm(grad, conj(A), ctx.pattern, True) if ctx.needs_input_grad[1] else None
        return d_A, d_B, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        A, B, pattern = args
        count = info.batch_size
        A, B = (
            x.expand(count, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip((A, B), in_dims[:2], strict=True)
        )
        out = sddmm(A.flatten(0, 1), B.flatten(0, 1), pattern.repeat(count))
        return out.unflatten(0, (count, -1)), 0
