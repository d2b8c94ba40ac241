"""Solving with sparse matrices: directly, by substitution, by conjugate gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.autograd import solvers
from gradmend.sparse.autograd.solve import Solve, Solver, nested_forward
from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import SparseError
from gradmend.sparse.tensor import SparseTensor


def _solve(A: SparseTensor, b: Tensor, solver: Solver) -> Tensor:
    if not isinstance(A, SparseTensor):
        raise SparseError(f"a sparse solve takes a SparseTensor, not {type(A).__name__}.")
    if A._pattern.ndim != 2 or A.batch_dims or A.dense_dim() or A.shape[0] != A.shape[1]:
        raise SparseError(f"a solve takes a square sparse matrix, not the shape {tuple(A.shape)}.")
    if not isinstance(b, Tensor) or b.dim() == 0:
        raise SparseError("a solve takes a right side with at least one dimension.")
    if not (A.is_floating_point() or A.is_complex()):
        raise SparseError(f"a solve takes floating-point numbers, not {A.dtype}: convert with .double().")
    rows = (
        b.shape[0] if b.dim() == 1 else b.shape[-2]
    )  # leading dimensions are batches, as torch.linalg has it
    if rows != A.shape[0]:
        raise SparseError(f"the right side has {rows} rows and the matrix {A.shape[0]}.")
    if b.dtype != A.dtype:
        raise SparseError(
            f"the matrix is {A.dtype} and the right side {b.dtype}: convert one with .to(dtype)."
        )
    if nested_forward():
        raise SparseError(
            "a derivative of a forward-mode derivative of a solve is lost by torch: take the inner one in "
            "reverse mode, as torch.func.hessian does."
        )
    first = b if b.dim() == 1 else b.movedim(-2, 0)
    wide = b[:, None] if b.dim() == 1 else first.flatten(1)
    solved = Solve.apply(A._values, wide, A._pattern, solver, False).reshape(first.shape)
    return solved if b.dim() == 1 else solved.movedim(0, -2)


@implements("spsolve", method=True)
def spsolve(A: SparseTensor, b: Tensor, *, left: bool = True) -> Tensor:
    """A direct solve (sparse LU by scipy): any square matrix that isn't singular."""
    return _solve(A, b, solvers.direct) if left else spsolve(A.t(), b.mT).mT


@implements("solve", method=True)
def solve(A: SparseTensor, B: Tensor, *, left: bool = True) -> Tensor:
    return spsolve(A, B, left=left)


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
    if isinstance(A, SparseTensor) and A.dtype in (torch.bfloat16, torch.float16):
        raise SparseError(
            f"conjugate gradients hardly ever converge in {A.dtype}: convert A and b with .float()."
        )
    return _solve(A, b, solvers.ConjugateGradients(tol, max_steps, jacobi))
