"""Forward kernels on raw tensors: one pass over the entries of a CSR pattern, no autograd.

A pattern is `crow` [rows + 1] and `col` [nnz], int64, rows sorted. `values` is [nnz] (segment kernels: any
trailing dimensions). The transposed pattern is `crow_t`, `row_t` and `perm`, with `values[perm]` its values.

    spmm(crow, col, values, X)               out[i] = sum over entries e of row i of values[e] * X[col[e]]
    spmm(crow_t, row_t, values, G, perm)     the transposed product, without building values[perm]
    sddmm(crow, col, A, B)                   out[e] = sum over k of A[row[e], k] * B[col[e], k]; no conjugation
                                             (row=, the row of each entry, if at hand, spares working it out)
    spmm_backward(crow, col, crow_t, row_t, perm, values, X, grad)
                                             (d values, d X) of spmm in one pass over the transposed pattern
    segment_sum, _mean, _prod                empty rows give 0, 0, 1
    scatter_sum(group, values, groups)       the same for entries in any order, group[e] the row of each
    gather(group, totals)                    back again: totals[group]
    segment_max, _min(crow, values, empty=0) empty rows give `empty`; NaN wins
    segment_logsumexp                        empty rows give -inf
    segment_softmax, _log_softmax            and their `_backward(crow, out, grad)`
"""

from gradmend.sparse.kernels.matmul import sddmm, spmm, spmm_backward
from gradmend.sparse.kernels.plain import rows_of
from gradmend.sparse.kernels.segment import (
    gather,
    scatter_sum,
    segment_log_softmax,
    segment_log_softmax_backward,
    segment_logsumexp,
    segment_max,
    segment_mean,
    segment_min,
    segment_prod,
    segment_softmax,
    segment_softmax_backward,
    segment_sum,
)

__all__ = [
    "gather",
    "rows_of",
    "scatter_sum",
    "sddmm",
    "segment_log_softmax",
    "segment_log_softmax_backward",
    "segment_logsumexp",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_softmax",
    "segment_softmax_backward",
    "segment_sum",
    "spmm",
    "spmm_backward",
]
