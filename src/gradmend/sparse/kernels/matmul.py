"""SpMM, SDDMM and the backward of SpMM: the compiled kernel where it pays, torch's ops everywhere else."""

from __future__ import annotations

from torch import Tensor

from gradmend.sparse.kernels import plain
from gradmend.sparse.kernels.gate import SMALL, flat, places, plan, rows, usable
from gradmend.sparse.kernels.memory import empty
from gradmend.sparse.kernels.team import run


def spmm(crow: Tensor, col: Tensor, values: Tensor, X: Tensor, perm: Tensor | None = None) -> Tensor:
    """out[i] = sum over entries e of row i of values[e] * X[col[e]]; with perm, of values[perm[e]]."""
    n, k = crow.shape[0] - 1, X.shape[1]
    work = (col.shape[0] + n) * k
    if work < SMALL or not usable(values, X) or (p := plan(X.dtype, k)) is None:
        return plain.spmm(crow, col, values, X, perm)
    from gradmend.sparse.kernels import compiled

    kernel = compiled.spmm(p.tag, p.width, p.exact, perm is not None)
    (X, ldx), values, out = rows(X), flat(values), empty((n, k), X.dtype)
    crow, col = places(crow), places(col)
    perm = None if perm is None else places(perm)
    where = 0 if perm is None else perm.data_ptr()
    pointers = (crow.data_ptr(), col.data_ptr(), where, values.data_ptr(), X.data_ptr(), ldx, out.data_ptr())
    run(kernel, work, *pointers, n, k)
    return out


def sddmm(crow: Tensor, col: Tensor, A: Tensor, B: Tensor, row: Tensor | None = None) -> Tensor:
    """out[e] = sum over k of A[row[e], k] * B[col[e], k]; `row`, if at hand, spares working it out."""
    n, k = crow.shape[0] - 1, A.shape[1]
    work = (col.shape[0] + n) * k
    if work < SMALL or not usable(A, B) or (p := plan(A.dtype, k)) is None:
        return plain.sddmm(crow, col, A, B, row)
    from gradmend.sparse.kernels import compiled

    kernel = compiled.sddmm(p.tag, p.wide, p.width, p.exact)
    dtype = A.dtype
    crow, col = places(crow), places(col)
    (A, lda), (B, ldb), out = rows(A), rows(B), empty((col.numel(),), plain.wide(dtype))
    pointers = (crow.data_ptr(), col.data_ptr(), A.data_ptr(), lda, B.data_ptr(), ldb, out.data_ptr())
    run(kernel, work, *pointers, n, k)
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
) -> tuple[Tensor, Tensor]:
    """The gradients of spmm with respect to values and X, from one walk over the transposed pattern."""
    n, k = crow_t.shape[0] - 1, X.shape[1]
    work = (col.shape[0] + n) * k
    if work < SMALL or not usable(values, X, grad) or (p := plan(X.dtype, k)) is None:
        return plain.spmm_backward(crow, col, crow_t, row_t, perm, values, X, grad, row)
    from gradmend.sparse.kernels import compiled

    kernel = compiled.spmm_backward(p.tag, p.wide, p.width, p.exact)
    dtype = X.dtype
    (X, ldx), (grad, ldg), values = rows(X), rows(grad), flat(values)
    d_values, d_X = empty((col.numel(),), plain.wide(dtype)), empty((n, k), dtype)
    crow_t, row_t, perm = places(crow_t), places(row_t), places(perm)
    pattern = (crow_t.data_ptr(), row_t.data_ptr(), perm.data_ptr())
    dense = (values.data_ptr(), X.data_ptr(), ldx, grad.data_ptr(), ldg, d_values.data_ptr(), d_X.data_ptr())
    run(kernel, 2 * work, *pattern, *dense, n, k)
    return d_values.to(dtype), d_X
