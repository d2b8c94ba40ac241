"""Every kernel from torch's own ops: any device, any dtype, nothing to compile.

These are the definition. The compiled kernels are tested equal to them, and they serve wherever numba can't.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_BAG = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
_CHUNK = 1 << 22  # entries x k gathered at a time, so that no temporary outgrows a few dozen MB


def rows_of(crow: Tensor, nnz: int) -> Tensor:
    """The row of each entry."""
    rows = torch.arange(crow.numel() - 1, device=crow.device)
    return torch.repeat_interleave(rows, crow.diff(), output_size=nnz)


def spmm(crow: Tensor, col: Tensor, values: Tensor, X: Tensor, perm: Tensor | None = None) -> Tensor:
    if perm is not None:
        values = values[perm]
    rows, nnz, k = crow.numel() - 1, col.numel(), X.shape[1]
    if nnz == 0 or k == 0:
        return X.new_zeros(rows, k)
    if X.is_complex():
        flat = torch.view_as_real(X.resolve_conj().contiguous()).flatten(1)
        turned = torch.view_as_real((X * 1j).contiguous()).flatten(1)
        values = values.resolve_conj()
        out = spmm(crow, col, values.real.contiguous(), flat)
        out = out.add_(spmm(crow, col, values.imag.contiguous(), turned))
        return torch.view_as_complex(out.view(rows, k, 2))
    if X.dtype in _BAG:
        # A strided X costs embedding_bag 25x.
        return F.embedding_bag(
            col, X.contiguous(), crow, mode="sum", per_sample_weights=values, include_last_offset=True
        )
    out, row = X.new_zeros(rows, k), rows_of(crow, nnz)
    step = max(1, _CHUNK // k)
    for i in range(0, nnz, step):
        j = min(i + step, nnz)
        out.index_add_(0, row[i:j], values[i:j, None] * X[col[i:j]])
    return out


def sddmm(crow: Tensor, col: Tensor, A: Tensor, B: Tensor) -> Tensor:
    nnz, k = col.numel(), A.shape[1]
    out = A.new_zeros(nnz)
    if nnz == 0 or k == 0:
        return out
    row = rows_of(crow, nnz)
    wide = torch.float32 if A.dtype in (torch.bfloat16, torch.float16) else A.dtype
    step = max(1, _CHUNK // k)
    for i in range(0, nnz, step):
        j = min(i + step, nnz)
        product = A[row[i:j]].to(wide) * B[col[i:j]].to(wide)
        out[i:j] = product.sum(1)
    return out


def spmm_backward(
    crow: Tensor,
    col: Tensor,
    crow_t: Tensor,
    row_t: Tensor,
    perm: Tensor,
    values: Tensor,
    X: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor]:
    if X.is_complex():
        return sddmm(crow, col, grad, X.conj()), spmm(crow_t, row_t, values.conj(), grad, perm)
    return sddmm(crow, col, grad, X), spmm(crow_t, row_t, values, grad, perm)


def _reduce(crow: Tensor, values: Tensor, how: str, fill: float | bool) -> Tensor:
    rows, nnz = crow.numel() - 1, values.shape[0]
    out = values.new_full((rows, *values.shape[1:]), fill)
    if nnz == 0 or out.numel() == 0:
        return out
    row = rows_of(crow, nnz).view(-1, *[1] * (values.dim() - 1)).expand_as(values)
    return out.scatter_reduce_(0, row, values, how, include_self=False)


def segment_sum(crow: Tensor, values: Tensor) -> Tensor:
    rows, nnz = crow.numel() - 1, values.shape[0]
    dtype = torch.int64 if values.dtype == torch.bool else values.dtype
    wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    out = torch.zeros((rows, *values.shape[1:]), dtype=wide, device=values.device)
    return out.index_add_(0, rows_of(crow, nnz), values.to(wide)).to(dtype)


def segment_mean(crow: Tensor, values: Tensor) -> Tensor:
    count = crow.diff().clamp(min=1).view(-1, *[1] * (values.dim() - 1))
    return segment_sum(crow, values) / count.to(values.dtype)


def segment_max(crow: Tensor, values: Tensor, empty: float = 0) -> Tensor:
    return _reduce(crow, values, "amax", empty)


def segment_min(crow: Tensor, values: Tensor, empty: float = 0) -> Tensor:
    return _reduce(crow, values, "amin", empty)


def segment_prod(crow: Tensor, values: Tensor) -> Tensor:
    if values.is_complex():  # scatter_reduce has no complex product: multiply entry after entry of each row
        out = values.new_ones((crow.numel() - 1, *values.shape[1:]))
        count = crow.diff()
        live, depth = count.nonzero().squeeze(1), 0
        while live.numel():
            out[live] *= values[crow[live] + depth]
            depth += 1
            live = live[count[live] > depth]
        return out
    return _reduce(crow, values, "prod", 1)


def segment_logsumexp(crow: Tensor, values: Tensor) -> Tensor:
    row = rows_of(crow, values.shape[0])
    top = segment_max(crow, values, float("-inf"))
    top = torch.where(top.isinf(), torch.zeros_like(top), top)
    total = segment_sum(crow, (values - top[row]).exp())
    return total.log() + top


def segment_softmax(crow: Tensor, values: Tensor) -> Tensor:
    row = rows_of(crow, values.shape[0])
    shifted = (values - segment_max(crow, values)[row]).exp()
    return shifted / segment_sum(crow, shifted)[row]


def segment_log_softmax(crow: Tensor, values: Tensor) -> Tensor:
    row = rows_of(crow, values.shape[0])
    shifted = values - segment_max(crow, values)[row]
    return shifted - segment_sum(crow, shifted.exp()).log()[row]


def segment_softmax_backward(crow: Tensor, out: Tensor, grad: Tensor) -> Tensor:
    row = rows_of(crow, out.shape[0])
    return out * (grad - segment_sum(crow, out * grad)[row])


def segment_log_softmax_backward(crow: Tensor, out: Tensor, grad: Tensor) -> Tensor:
    row = rows_of(crow, out.shape[0])
    return grad - out.exp() * segment_sum(crow, grad)[row]
