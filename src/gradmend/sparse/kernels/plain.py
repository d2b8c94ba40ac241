"""Every kernel from torch's own ops: any device, any dtype, nothing to compile.

These are the definition. The compiled kernels are tested equal to them, and they serve wherever numba can't.
"""

from __future__ import annotations

import warnings
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

BAG = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
# What F.embedding_bag calls without gradients, less the checks: a fifth of a small product's time.
bag = getattr(torch, "_embedding_bag_forward_only", None)
_SAMPLED = frozenset({torch.float32, torch.float64, torch.complex64, torch.complex128})
_CHUNK = 1 << 22  # entries x k gathered at a time, so that no temporary outgrows a few dozen MB


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type that sums are kept in."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def conj(x: Tensor) -> Tensor:
    """The conjugate, written out: kernels read memory as it lies."""
    return x.conj().resolve_conj() if x.is_complex() else x


@cache
def _quiet_csr() -> None:
    """PyTorch calls CSR beta once a process, in a warning that is no user's concern here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor([0, 1], [0], [0.0], (1, 1), check_invariants=False)


def _csr(crow: Tensor, col: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    _quiet_csr()
    return torch.sparse_csr_tensor(crow, col, values, size, check_invariants=False)


def _records(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def rows_of(crow: Tensor, nnz: int) -> Tensor:
    """The row of each entry."""
    rows = torch.arange(crow.numel() - 1, device=crow.device)
    return torch.repeat_interleave(rows, crow.diff(), output_size=nnz)


def spmm(crow: Tensor, col: Tensor, values: Tensor, X: Tensor, perm: Tensor | None = None) -> Tensor:
    if perm is not None:
        values = values.index_select(0, perm)
    rows, nnz, k = crow.shape[0] - 1, col.shape[0], X.shape[1]
    if nnz == 0 or k == 0:
        return X.new_zeros(rows, k)
    if X.dtype in BAG:
        # embedding_bag takes 25x for a strided X, and reads strided indices as if they were not (2.13).
        X, col, crow = X.contiguous(), col.contiguous(), crow.contiguous()
        if bag is not None and not (torch.is_grad_enabled() and (X.requires_grad or values.requires_grad)):
            return bag(X, col, crow, False, 0, False, values, True, -1)[0]
        return F.embedding_bag(col, X, crow, mode="sum", per_sample_weights=values, include_last_offset=True)
    if X.is_complex():
        flat = torch.view_as_real(X.resolve_conj().contiguous()).flatten(1)
        turned = torch.view_as_real((X * 1j).contiguous()).flatten(1)
        values = values.resolve_conj()
        out = spmm(crow, col, values.real.contiguous(), flat)
        out = out.add_(spmm(crow, col, values.imag.contiguous(), turned))
        return torch.view_as_complex(out.view(rows, k, 2))
    out, row = X.new_zeros(rows, k), rows_of(crow, nnz)
    step = max(1, _CHUNK // k)
    for i in range(0, nnz, step):
        j = min(i + step, nnz)
        out.index_add_(0, row[i:j], values[i:j, None] * X[col[i:j]])
    return out


def sddmm(crow: Tensor, col: Tensor, A: Tensor, B: Tensor, row: Tensor | None = None) -> Tensor:
    nnz, k = col.numel(), A.shape[1]
    if nnz == 0 or k == 0:
        return A.new_zeros(nnz)
    if nnz * k > _CHUNK // 256 and A.dtype in _SAMPLED and A.is_cpu and not _records(A, B):
        # MKL's: no gathered temporaries, and much faster than them once past the cost of the call.
        zeros = torch.zeros(nnz, dtype=A.dtype)
        mask = _csr(crow, col, zeros, (A.shape[0], B.shape[0]))
        sampled = torch.sparse.sampled_addmm(mask, A.resolve_conj(), B.resolve_conj().t(), beta=0)
        return sampled.values()
    if row is None:
        row = rows_of(crow, nnz)
    if nnz * k <= _CHUNK:
        return _dots(A, B, row, col)
    step = max(1, _CHUNK // k)
    return torch.cat([_dots(A, B, row[i : i + step], col[i : i + step]) for i in range(0, nnz, step)])


def _dots(A: Tensor, B: Tensor, row: Tensor, col: Tensor) -> Tensor:
    a, b, dtype = A.index_select(0, row), B.index_select(0, col), A.dtype
    if wide(dtype) is not dtype:
        return (a.float() * b.float()).sum(1).to(dtype)
    return a.mul_(b).sum(1) if not _records(A, B) else (a * b).sum(1)


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
    if X.is_complex():
        X, values = X.conj(), values.conj()
    return sddmm(crow, col, grad, X, row), spmm(crow_t, row_t, values, grad, perm)


def _reduce(crow: Tensor, values: Tensor, how: str, fill: float | bool) -> Tensor:
    rows, nnz = crow.numel() - 1, values.shape[0]
    out = values.new_full((rows, *values.shape[1:]), fill)
    if nnz == 0 or out.numel() == 0:
        return out
    row = rows_of(crow, nnz).view(-1, *[1] * (values.dim() - 1)).expand_as(values)
    return out.scatter_reduce_(0, row, values, how, include_self=False)


def segment_sum(crow: Tensor, values: Tensor) -> Tensor:
    return scatter_sum(rows_of(crow, values.shape[0]), values, crow.numel() - 1)


def scatter_sum(group: Tensor, values: Tensor, groups: int) -> Tensor:
    dtype = torch.int64 if values.dtype == torch.bool else values.dtype
    out = torch.zeros((groups, *values.shape[1:]), dtype=wide(dtype), device=values.device)
    return out.index_add_(0, group, values.to(wide(dtype))).to(dtype)


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
