"""Products of one column: kernels of their own, where the vector fits into the cache. Called by matmul.py, after its checks."""

from __future__ import annotations

import torch
from torch import Tensor

from gradmend.sparse.kernels.checks import address
from gradmend.sparse.kernels.gate import flat, places, rows
from gradmend.sparse.kernels.memory import empty
from gradmend.sparse.kernels.team import run, threads_for

_TAGS = {torch.float32: "f32", torch.float64: "f64"}
_CACHED = 1 << 20  # numbers of a vector that a core's own cache holds, or nearly
_INDEX = torch.int64


def takes(dtype: torch.dtype, cols: int, nnz: int) -> bool:
    """Several entries a column: else setting up a vector for each thread is most of the work."""
    return dtype in _TAGS and cols <= _CACHED and 4 * cols <= nnz


def spmv(crow: Tensor, col: Tensor, values: Tensor, X: Tensor, work: int) -> Tensor:
    """out[i] = sum over entries e of row i of values[e] * X[col[e]]."""
    from gradmend.sparse.kernels import compiled_narrow

    n, nnz, cols, dtype = crow.shape[0] - 1, col.shape[0], X.shape[0], X.dtype
    (X, ldx), values, out = rows(X), flat(values), empty((n, 1), dtype)
    crow, col = places(crow), places(col)
    run(
        compiled_narrow.spmv(_TAGS[dtype]),
        work,
        address(crow, (n + 1,), _INDEX),
        address(col, (nnz,), _INDEX),
        address(values, (nnz,), dtype),
        address(X, (cols, 1), dtype, ldx),
        ldx,
        address(out, (n, 1), dtype),
        n,
    )
    return out


def spmv_backward(
    crow: Tensor, col: Tensor, values: Tensor, X: Tensor, grad: Tensor, work: int
) -> tuple[Tensor, Tensor]:
    """The gradients with respect to values and X."""
    from gradmend.sparse.kernels import compiled_narrow

    n, nnz, cols, dtype = crow.shape[0] - 1, col.shape[0], X.shape[0], X.dtype
    threads = threads_for(work)
    (X, ldx), (grad, ldg), values = rows(X), rows(grad), flat(values)
    crow, col = places(crow), places(col)
    # No torch op of this size here: its OpenMP threads would spin on the cores that ours need.
    d_values, sums = empty((nnz,), dtype), empty((threads, cols), dtype)
    sums.numpy().fill(0)
    held = address(sums, (threads, cols), dtype)
    run(
        compiled_narrow.spmv_backward(_TAGS[dtype]),
        work,
        address(crow, (n + 1,), _INDEX),
        address(col, (nnz,), _INDEX),
        address(values, (nnz,), dtype),
        address(X, (cols, 1), dtype, ldx),
        ldx,
        address(grad, (n, 1), dtype, ldg),
        ldg,
        address(d_values, (nnz,), dtype),
        held,
        n,
        cols,
        named=True,
    )
    if threads > 1:
        run(compiled_narrow.gather_up(_TAGS[dtype]), threads * cols, held, cols, threads)
    return d_values, sums[0][:, None]
