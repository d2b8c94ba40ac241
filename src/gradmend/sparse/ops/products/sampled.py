"""Dense @ dense at the entries only: sampled_addmm and sddmm."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gradmend.sparse.autograd.product import broadcast, check_inner, sampled
from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import SparseError
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor, at


@implements("sampled_addmm")
def sampled_addmm(
    S: SparseTensor, A: Tensor, B: Tensor, *, beta: float = 1.0, alpha: float = 1.0
) -> SparseTensor:
    """beta * S + alpha * (A @ B) at the entries of S; A [..., r, k] and B [..., k, c] may be batches."""
    if not isinstance(S, SparseTensor) or S.dense_dim():
        raise SparseError("sampled_addmm takes a sparse S without dense dimensions, and dense A and B.")
    values = sampled(S._pattern, *_factors(A, B))
    if alpha != 1:
        values = values * alpha
    lead = broadcast(values.shape[:-1], S._values.shape[:-1])
    if beta != 0:
        values = values + beta * S._values
    elif values.shape[:-1] != lead:
        values = values.expand(*lead, -1)
    return S.like(values, batch_dims=len(lead))


def sddmm(pattern: Pattern, A: Tensor, B: Tensor) -> SparseTensor:
    """Sampled dense @ dense: A [..., r, k] @ B [..., k, c], computed at the pattern's places only.

    Leading dimensions (heads, batches) broadcast, and become batch dimensions of the result.
    """
    if isinstance(pattern, SparseTensor):
        pattern = pattern.pattern
    if not isinstance(pattern, Pattern):
        raise SparseError(f"sddmm takes a Pattern first, not {type(pattern).__name__}.")
    values = sampled(pattern.canonical(), *_factors(A, B))
    return at(pattern, values, values.dim() - 1)


def _factors(A: Any, B: Any) -> tuple[Tensor, Tensor]:
    for x in (A, B):
        if not isinstance(x, Tensor):
            raise SparseError(f"a sampled product takes dense tensors, not {type(x).__name__}.")
        if x.dim() < 2:
            raise SparseError(
                f"a sampled product takes matrices, or batches of them, not the shape {tuple(x.shape)}."
            )
    check_inner(A.shape, B.shape, A.shape[-1], B.shape[-2])
    return A, B.mT
