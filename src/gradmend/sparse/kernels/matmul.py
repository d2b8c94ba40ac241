"""SpMM, SDDMM and the backward of SpMM: the compiled kernel where it pays, torch's ops everywhere else.

`size` is that of the pattern, if it was validated; without it all indices are read and checked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradmend.sparse.kernels import checks, narrow, plain
from gradmend.sparse.kernels.checks import address, operand, same_device
from gradmend.sparse.kernels.gate import SMALL, flat, places, plan, rows, usable
from gradmend.sparse.kernels.memory import empty
from gradmend.sparse.kernels.team import alone, run

Size = tuple[int, ...]
_INDEX = torch.int64


def spmm(
    crow: Tensor,
    col: Tensor,
    values: Tensor,
    X: Tensor,
    perm: Tensor | None = None,
    size: Size | None = None,
) -> Tensor:
    """out[i] = sum over entries e of row i of values[e] * X[col[e]]; with perm, of values[perm[e]]."""
    nnz, n = col.shape[0], crow.shape[0] - 1
    operand("values", values, nnz)
    operand("the dense operand", X, None if size is None else size[1], None)
    same_device(crow, values, X)
    if size is None:
        checks.csr(crow, col, X.shape[0], perm)
    k = X.shape[1]
    work = (nnz + n) * k
    if work < SMALL or not usable(values, X) or (p := plan(X.dtype, k)) is None:
        return alone(plain.spmm, crow, col, values, X, perm)
    if k == 1 and perm is None and narrow.takes(X.dtype, cols=X.shape[0], nnz=nnz):
        return narrow.spmv(crow, col, values, X, work)
    from gradmend.sparse.kernels import compiled

    kernel = compiled.spmm(p.tag, p.runs, perm is not None)
    dtype, cols = X.dtype, X.shape[0]
    (X, ldx), values, out = rows(X), flat(values), empty((n, k), dtype)
    crow, col = places(crow), places(col)
    perm = None if perm is None else places(perm)
    run(
        kernel,
        work,
        address(crow, (n + 1,), _INDEX),
        address(col, (nnz,), _INDEX),
        0 if perm is None else address(perm, (nnz,), _INDEX),
        address(values, (nnz,), dtype),
        address(X, (cols, k), dtype, ldx),
        ldx,
        address(out, (n, k), dtype),
        n,
        k,
    )
    return out


def sddmm(
    crow: Tensor, col: Tensor, A: Tensor, B: Tensor, row: Tensor | None = None, size: Size | None = None
) -> Tensor:
    """out[e] = sum over k of A[row[e], k] * B[col[e], k]; `row`, if at hand, spares working it out."""
    n, nnz = crow.shape[0] - 1, col.shape[0]
    operand("the left operand", A, n, None)
    operand("the right operand, turned,", B, None if size is None else size[1], A.shape[1])
    same_device(crow, A, B)
    if size is None:
        checks.csr(crow, col, B.shape[0])
        if row is not None:
            checks.places("rows", row, nnz, n)
    k, cols = A.shape[1], B.shape[0]
    work = (nnz + n) * k
    if work < SMALL or not usable(A, B) or (p := plan(A.dtype, k)) is None:
        return alone(plain.sddmm, crow, col, A, B, row)
    from gradmend.sparse.kernels import compiled

    kernel = compiled.sddmm(p.tag, p.wide, p.runs)
    dtype, wide = A.dtype, plain.wide(A.dtype)
    crow, col = places(crow), places(col)
    (A, lda), (B, ldb), out = rows(A), rows(B), empty((nnz,), wide)
    run(
        kernel,
        work,
        address(crow, (n + 1,), _INDEX),
        address(col, (nnz,), _INDEX),
        address(A, (n, k), dtype, lda),
        lda,
        address(B, (cols, k), dtype, ldb),
        ldb,
        address(out, (nnz,), wide),
        n,
        k,
    )
    return out.to(dtype)


def spmm_backward(
    crow: Tensor,
    col: Tensor,
    crow_t: Tensor,
    row_t: Tensor,
    perm: Tensor,
    values: Tensor,
    X: Tensor,
    grad: Tensor,
    row: Tensor | None = None,
    size: Size | None = None,
) -> tuple[Tensor, Tensor]:
    """The gradients of spmm with respect to values and X, from one walk over the transposed pattern."""
    n, m, nnz = crow_t.shape[0] - 1, crow.shape[0] - 1, col.shape[0]
    operand("values", values, nnz)
    operand("the dense operand", X, n, None)
    operand("the gradient", grad, m, X.shape[1])
    same_device(crow, values, X, grad)
    if size is None:
        checks.csr(crow, col, n)
        checks.csr(crow_t, row_t, m, perm)
        checks.operand("the transposed pattern", row_t, nnz)
        if row is not None:
            checks.places("rows", row, nnz, m)
    k = X.shape[1]
    work = (nnz + n) * k
    if work < SMALL or not usable(values, X, grad) or (p := plan(X.dtype, k)) is None:
        return alone(plain.spmm_backward, crow, col, crow_t, row_t, perm, values, X, grad, row)
    if k == 1 and narrow.takes(X.dtype, cols=n, nnz=nnz):
        return narrow.spmv_backward(crow, col, values, X, grad, 2 * work)
    from gradmend.sparse.kernels import compiled

    kernel = compiled.spmm_backward(p.tag, p.wide, p.runs)
    dtype, wide = X.dtype, plain.wide(X.dtype)
    (X, ldx), (grad, ldg), values = rows(X), rows(grad), flat(values)
    d_values, d_X = empty((nnz,), wide), empty((n, k), dtype)
    crow_t, row_t, perm = places(crow_t), places(row_t), places(perm)
    run(
        kernel,
        2 * work,
        address(crow_t, (n + 1,), _INDEX),
        address(row_t, (nnz,), _INDEX),
        address(perm, (nnz,), _INDEX),
        address(values, (nnz,), dtype),
        address(X, (n, k), dtype, ldx),
        ldx,
        address(grad, (m, k), dtype, ldg),
        ldg,
        address(d_values, (nnz,), wide),
        address(d_X, (n, k), dtype),
        n,
        k,
    )
    return d_values.to(dtype), d_X
