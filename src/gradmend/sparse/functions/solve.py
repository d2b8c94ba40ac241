"""Solving with sparse matrices. The gradient of a solve is a solve with the transpose, and a sampled product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters

from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import SparseError
from gradmend.sparse.functions import solvers
from gradmend.sparse.functions.matmul import product, sampled
from gradmend.sparse.kernels.plain import conj
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor

# (values, right sides [n, k], pattern, transposed?) -> [n, k]
Solver = Callable[[Tensor, Tensor, Pattern, bool], Tensor]


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


def _solve(A: SparseTensor, b: Tensor, solver: Solver) -> Tensor:
    if not isinstance(A, SparseTensor):
        raise SparseError(f"a sparse solve takes a SparseTensor, not {type(A).__name__}.")
    if A.pattern.ndim != 2 or A.batch_dims or A.dense_dim() or A.shape[0] != A.shape[1]:
        raise SparseError(f"a solve takes a square sparse matrix, not the shape {tuple(A.shape)}.")
    if not isinstance(b, Tensor) or b.dim() == 0:
        raise SparseError("a solve takes a right side with at least one dimension.")
    if not (A.is_floating_point() or A.is_complex()):
        raise SparseError(f"a solve takes floating-point numbers, not {A.dtype}: convert with .double().")
    if b.shape[0] != A.shape[0]:
        raise SparseError(f"the right side has {b.shape[0]} rows and the matrix {A.shape[0]}.")
    if b.dtype != A.dtype:
        raise SparseError(
            f"the matrix is {A.dtype} and the right side {b.dtype}: convert one with .to(dtype)."
        )
    if nested_forward():
        raise SparseError(
            "a derivative of a forward-mode derivative of a solve is lost by torch: take the inner one in "
            "reverse mode, as torch.func.hessian does."
        )
    wide = b[:, None] if b.dim() == 1 else b.flatten(1)
    return Solve.apply(A.values(), wide, A.pattern, solver, False).reshape(b.shape)


@implements("spsolve", method=True)
def spsolve(A: SparseTensor, b: Tensor, *, left: bool = True) -> Tensor:
    """A direct solve (sparse LU by scipy): any square matrix that isn't singular."""
    return _solve(A, b, solvers.direct)


@implements("solve", method=True)
def solve(A: SparseTensor, B: Tensor, *, left: bool = True) -> Tensor:
    return spsolve(A, B) if left else spsolve(A.t(), B.mT).mT


@implements("solve_triangular")
def solve_triangular(
    A: SparseTensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """Substitution on the upper or lower triangle; entries on the other side are ignored, as in torch."""
    if not left:
        return solve_triangular(A.t(), B.mT, upper=not upper, unitriangular=unitriangular).mT
    S = A.triu(1 if unitriangular else 0) if upper else A.tril(-1 if unitriangular else 0)
    return _solve(S, B, solvers.Triangular(upper, unitriangular))


@implements("triangular_solve", method=False)
def triangular_solve(
    b: Tensor, A: SparseTensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    if transpose:
        A, upper = A.t(), not upper
    x = solve_triangular(A, b, upper=upper, unitriangular=unitriangular)
    pair: Any = (x, A)
    return torch.return_types.triangular_solve(pair)


def cg(
    A: SparseTensor, b: Tensor, *, tol: float = 1e-10, max_steps: int | None = None, jacobi: bool = True
) -> Tensor:
    """Conjugate gradients, for symmetric (Hermitian) positive definite A; gradients by the same solve.

    Every entry gets its own gradient: where A is built from shared numbers, they add up as usual.
    """
    return _solve(A, b, solvers.ConjugateGradients(tol, max_steps, jacobi))
