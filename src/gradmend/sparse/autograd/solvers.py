"""The numbers behind the solves, without gradients: sparse LU, substitution, conjugate gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.autograd.product import product
from gradmend.sparse.errors import SparseError
from gradmend.sparse.pattern import Pattern


def direct(values: Tensor, b: Tensor, pattern: Pattern, flip: bool) -> Tensor:
    try:
        import scipy.sparse
        import scipy.sparse.linalg
    except ImportError as missing:
        raise SparseError(
            "a direct sparse solve uses scipy's LU: install scipy, or use gradmend.sparse.cg for symmetric "
            "positive definite matrices and solve_triangular for triangular ones."
        ) from missing
    index = pattern._indices.cpu().numpy()
    wide = values.detach().cpu()
    wide = wide.to(torch.complex128 if wide.is_complex() else torch.float64)
    A = scipy.sparse.csc_array((wide.numpy(), (index[0], index[1])), shape=pattern.size)
    try:
        lu = scipy.sparse.linalg.splu(A)
    except RuntimeError as singular:
        raise SparseError("the sparse matrix is singular: it can't be solved with.") from singular
    x = lu.solve(b.detach().cpu().to(wide.dtype).numpy(), trans="T" if flip else "N")
    return torch.as_tensor(x).to(b)


@dataclass(frozen=True)
class Triangular:
    """Substitution by levels: rows that wait for nothing more are solved together."""

    upper: bool
    unit: bool

    def __call__(self, values: Tensor, b: Tensor, pattern: Pattern, flip: bool) -> Tensor:
        row, col = (pattern._col, pattern._row) if flip else (pattern._row, pattern._col)
        local, row, col = _occupied(row, col)
        x = b.detach().index_select(0, local)
        values = values.detach()
        off = (row != col).nonzero().squeeze(1)
        if not self.unit:
            scale = values.new_zeros(local.shape[0]).index_add(0, row, values * (row == col))
            if local.shape[0] < pattern.size[0] or bool((scale == 0).any()):
                raise SparseError(
                    "the triangular matrix has a zero on its diagonal: it can't be solved with."
                )
        level = _levels(row[off], col[off], local.shape[0])
        order = torch.argsort(level)
        bounds = torch.cat([level.new_zeros(1), torch.bincount(level).cumsum(0)]).tolist()
        depth = level[row[off]]
        by_depth = torch.argsort(depth)
        cuts = torch.cat(
            [depth.new_zeros(1), torch.bincount(depth, minlength=len(bounds) - 1).cumsum(0)]
        ).tolist()
        for k in range(len(bounds) - 1):
            e = off[by_depth[cuts[k] : cuts[k + 1]]]
            if e.numel():
                x.index_add_(0, row[e], values[e, None] * x[col[e]], alpha=-1)
            if not self.unit:
                rows = order[bounds[k] : bounds[k + 1]]
                x[rows] /= scale[rows, None]
        return b.detach().index_copy(0, local, x)


def _occupied(row: Tensor, col: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that take part at all; the others keep their right side."""
    ids, inverse = torch.unique(torch.cat([row, col]), return_inverse=True)
    return ids, inverse[: row.shape[0]], inverse[row.shape[0] :]


def _levels(row: Tensor, col: Tensor, n: int) -> Tensor:
    """How many solves each row must wait for: 0 if none, else one more than the latest it needs."""
    level = torch.zeros(n, dtype=torch.int64, device=row.device)
    while True:
        wait = level.scatter_reduce(0, row, level[col] + 1, "amax", include_self=True)
        if torch.equal(wait, level):
            return level
        level = wait


@dataclass(frozen=True)
class ConjugateGradients:
    tol: float
    max_steps: int | None
    jacobi: bool

    def __call__(self, values: Tensor, b: Tensor, pattern: Pattern, flip: bool) -> Tensor:
        values, b = values.detach(), b.detach()

        def times(x: Tensor) -> Tensor:
            return product(pattern, values, x, flip)

        scale: Any = 1
        if self.jacobi:
            on = (pattern._row == pattern._col).nonzero().squeeze(1)
            scale = b.new_ones(b.shape[0], 1).index_copy(0, pattern._row[on], 1 / values[on, None])
        x = torch.zeros_like(b)
        r = b.clone()
        z = scale * r
        p = z.clone()
        rz = _dot(r, z)
        goal = self.tol * b.norm(dim=0).clamp(min=torch.finfo(b.dtype).tiny)
        steps = self.max_steps if self.max_steps is not None else 10 * b.shape[0] + 10
        for _ in range(steps):
            if bool((r.norm(dim=0) <= goal).all()):
                return x
            Ap = times(p)
            alpha = _ratio(rz, _dot(p, Ap))
            x = x + alpha * p
            r = r - alpha * Ap
            z = scale * r
            new = _dot(r, z)
            p = z + _ratio(new, rz) * p
            rz = new
        if bool((r.norm(dim=0) <= goal).all()):
            return x
        raise SparseError(
            f"conjugate gradients did not reach {self.tol:g} in {steps} steps: the matrix may not be symmetric "
            f"positive definite; use spsolve, a larger tol, or more max_steps."
        )


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a.conj() * b).sum(0)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """Columns that have converged divide zero by zero."""
    return torch.where(b == 0, torch.zeros_like(a), a / torch.where(b == 0, torch.ones_like(b), b))
