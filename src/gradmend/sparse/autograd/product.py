"""Products of values and dense operands, with gradients: by pattern, whatever the leading dimensions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.autograd.place import put
from gradmend.sparse.autograd.primitive import sddmm, spmm
from gradmend.sparse.errors import SparseError, torchs_own
from gradmend.sparse.pattern import Pattern

_SMALL_ITEM = 1 << 16  # multiply-adds below which one pass for the whole batch pays
_DIFFERENTIABLE = frozenset(
    {torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128}
)


def product(pattern: Pattern, values: Tensor, X: Tensor, flip: bool = False) -> Tensor:
    """[nnz] values, X [..., n, k]: one pass over the entries, whatever the leading dimensions."""
    values, X = agree(values, X)
    if X.dim() > 2:
        lead = X.shape[:-2]
        wide = X.movedim(-2, 0)
        out = product(pattern, values, wide.flatten(1), flip)
        return out.unflatten(1, (*lead, X.shape[-1])).movedim(0, -2)
    if values.dtype not in _DIFFERENTIABLE:
        return _whole_numbers(pattern, values, X, flip)
    local = pattern._local()
    source, target = (local.row_ids, local.col_ids) if flip else (local.col_ids, local.row_ids)
    if source is not None:
        X = X.index_select(0, source)
    out = spmm(values, X, local.pattern, flip)
    if target is None:
        return out
    return put(pattern.size[1 if flip else 0], target, out)


def sampled(pattern: Pattern, A: Tensor, B: Tensor) -> Tensor:
    """(A @ B.T) at the entries: A [..., r, k], B [..., c, k] -> [..., nnz]; batches broadcast."""
    if A.dim() < 2 or B.dim() < 2:
        raise SparseError(
            f"a sampled product takes matrices, or batches of them, not the shapes {tuple(A.shape)} and {tuple(B.mT.shape) if B.dim() > 1 else tuple(B.shape)}."
        )
    if pattern.ndim != 2 or (A.shape[-2], B.shape[-2]) != pattern.size or A.shape[-1] != B.shape[-1]:
        raise SparseError(
            f"a product of the shapes {tuple(A.shape)} and {tuple(B.mT.shape)} can't be sampled by a pattern of "
            f"{' x '.join(str(n) for n in pattern.size)}."
        )
    if A.device != B.device or (A.device != pattern.device and not A.is_meta):
        raise SparseError(f"the operands are on {A.device} and {B.device}, the pattern on {pattern.device}.")
    A, B = agree(A, B)
    if A.dim() > 2 or B.dim() > 2:
        return _sampled_batch(pattern, A, B)
    local = pattern._local()
    if local.row_ids is not None:
        A = A.index_select(0, local.row_ids)
    if local.col_ids is not None:
        B = B.index_select(0, local.col_ids)
    if A.dtype not in _DIFFERENTIABLE:
        row, col = local.pattern._row, local.pattern._col
        return (A.index_select(0, row) * B.index_select(0, col)).sum(1).to(A.dtype)
    return sddmm(A, B, local.pattern)


def _sampled_batch(pattern: Pattern, A: Tensor, B: Tensor) -> Tensor:
    lead = broadcast(A.shape[:-2], B.shape[:-2])
    count = lead.numel()
    A, B = (x.expand(*lead, *x.shape[-2:]).reshape(count, *x.shape[-2:]) for x in (A, B))
    if count == 0 or pattern.nnz * A.shape[-1] > _SMALL_ITEM:
        # Each is work enough for all threads, and a pattern for the whole batch would be as long as the batch.
        rows = [sampled(pattern, a, b) for a, b in zip(A.unbind(0), B.unbind(0), strict=True)]
        out = torch.stack(rows) if rows else A.new_zeros(0, pattern.nnz)
    else:
        out = sampled(pattern.repeat(count), A.flatten(0, 1), B.flatten(0, 1))
    return out.reshape(*lead, pattern.nnz)


def _whole_numbers(pattern: Pattern, values: Tensor, X: Tensor, flip: bool) -> Tensor:
    """Integers and booleans have no kernels and need no gradients."""
    source, target = (pattern._row, pattern._col) if flip else (pattern._col, pattern._row)
    wide = torch.int64 if values.dtype == torch.bool else values.dtype
    terms = values.to(wide)[:, None] * X[source].to(wide)
    out = terms.new_zeros(pattern.size[1 if flip else 0], X.shape[1]).index_add(0, target, terms)
    return out.to(values.dtype)


def autocast(kind: str) -> bool:
    return kind != "meta" and torch.is_autocast_enabled(kind)


def agree(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Autocast as torch.mm does; otherwise dtypes must be equal, as torch.mm asks."""
    if a.layout is not torch.strided or b.layout is not torch.strided:
        raise torchs_own()
    if a.device != b.device:
        raise SparseError(
            f"one operand is on {a.device}, the other on {b.device}: move one with .to(device)."
        )
    kind = a.device.type
    if autocast(kind) and a.is_floating_point() and b.is_floating_point():
        low = torch.get_autocast_dtype(kind)
        return a.to(low), b.to(low)
    if a.dtype != b.dtype:
        raise SparseError(
            f"the sparse values are {a.dtype} and the dense operand is {b.dtype}: convert one with .to(dtype)."
        )
    return a, b


def broadcast(*shapes: Any) -> torch.Size:
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError as error:
        said = " and ".join(str(tuple(s)) for s in shapes)
        raise SparseError(f"batch dimensions {said} don't broadcast.") from error


def check_inner(left: Any, right: Any, inner: int, other: int) -> None:
    if inner != other:
        raise SparseError(
            f"shapes {tuple(left)} and {tuple(right)} can't be multiplied: {inner} and {other} must be equal."
        )
