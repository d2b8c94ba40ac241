"""Products with dense operands: S @ X, X @ S, mv, addmm, F.linear, and dense @ dense sampled at entries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse import dynamo
from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import SparseError, torchs_own
from gradmend.sparse.functions.place import add_into, put
from gradmend.sparse.functions.primitive import sddmm, spmm
from gradmend.sparse.functions.quick import bare_product
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor, make


@implements("matmul", "mm", "mv", "bmm", "dot", "smm", "hspmm", "__matmul__")
def matmul(a: Any, b: Any, reduce: str | None = None, **unused: Any) -> Any:
    if type(a) is SparseTensor and reduce is None and (quick := bare_product(a, b)) is not None:
        return quick
    if not dynamo.mended:
        dynamo.check()
    if reduce is not None:
        from gradmend.sparse.functions.message import propagate

        return propagate(a, b, {"amax": "max", "amin": "min"}.get(reduce, reduce))
    if isinstance(a, SparseTensor) and isinstance(b, SparseTensor):
        from gradmend.sparse.functions.spspmm import sparse_sparse

        return sparse_sparse(a, b)
    if isinstance(a, SparseTensor):
        return sparse_dense(a, b)
    return dense_sparse(a, b)


@implements("__rmatmul__")
def rmatmul(a: Any, b: Any) -> Any:
    return matmul(b, a)


def sparse_dense(S: SparseTensor, X: Tensor) -> Any:
    """S [r, c] @ X [c], [c, k] or [..., c, k]; S [b, r, c] with batch dimensions; S [.., d] @ X [d, k]."""
    if S.dense_dim():
        if X.dim() > 2:
            raise SparseError(
                f"S has dense dimensions: S @ X takes an X of 1 or 2 dimensions, not {X.dim()}."
            )
        _check(S.shape, X.shape, S.shape[-1], X.shape[0])
        values, X = _agree(S.values(), X)
        return S.like(values @ X)
    if S.pattern.ndim == 1 and not S.batch_dims:
        _check(S.shape, X.shape, S.shape[0], X.shape[0] if X.dim() == 1 else X.shape[-2])
        return row_times(S, X)
    if S.pattern.ndim != 2:
        return _fold_rows(S, X)
    if X.dim() == 0:
        raise SparseError("S @ X takes an X with at least one dimension; multiply by a number with S * x.")
    inner = X.shape[0] if X.dim() == 1 else X.shape[-2]
    _check(S.shape, X.shape, S.pattern.size[1], inner)
    if X.dim() == 1:
        return sparse_dense(S, X[:, None]).squeeze(-1)
    if S.batch_dims:
        return _batched(S, X, flip=False)
    return product(S.pattern, S.values(), X)


def dense_sparse(Y: Tensor, S: SparseTensor) -> Tensor:
    """Y [r], [m, r] or [..., m, r] @ S [r, c]."""
    if S.dense_dim():
        raise SparseError(
            "X @ S contracts a sparse dimension of an S with dense dimensions: write torch.einsum instead, "
            "such as einsum('mr,rcd->mcd', X, S)."
        )
    if S.pattern.ndim != 2:
        if S.pattern.ndim == 1 and not S.batch_dims:
            _check(Y.shape, S.shape, Y.shape[-1], S.shape[0])
            return row_times(S, Y.mT if Y.dim() > 1 else Y)
        raise SparseError(f"X @ S takes an S with 2 sparse dimensions, not {S.pattern.ndim}.")
    if Y.dim() == 0:
        raise SparseError("X @ S takes an X with at least one dimension; multiply by a number with x * S.")
    _check(Y.shape, S.shape, Y.shape[-1], S.pattern.size[0])
    if Y.dim() == 1:
        return dense_sparse(Y[None], S).squeeze(-2)
    if S.batch_dims:
        return _batched(S, Y.mT, flip=True).mT
    return product(S.pattern, S.values(), Y.mT, flip=True).mT


def product(pattern: Pattern, values: Tensor, X: Tensor, flip: bool = False) -> Tensor:
    """[nnz] values, X [..., n, k]: one pass over the entries, whatever the leading dimensions."""
    values, X = _agree(values, X)
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
    """(A @ B.T) at the entries: A [r, k], B [c, k] -> [nnz]."""
    A, B = _agree(A, B)
    local = pattern._local()
    if local.row_ids is not None:
        A = A.index_select(0, local.row_ids)
    if local.col_ids is not None:
        B = B.index_select(0, local.col_ids)
    return sddmm(A, B, local.pattern)


def row_times(S: SparseTensor, X: Tensor) -> Tensor:
    """A sparse vector times a dense matrix: the rows of X that it names, weighed and summed."""
    values, X = _agree(S.values(), X)
    picked = X.movedim(-2, 0) if X.dim() > 1 else X
    picked = picked.index_select(0, S.pattern._row)
    return torch.tensordot(values, picked, dims=([0], [0]))


def _fold_rows(S: SparseTensor, X: Tensor) -> Any:
    """More sparse dimensions: all but the last are rows of one flat matrix."""
    from gradmend.sparse.functions.shape import reshape

    if X.dim() > 2:
        raise SparseError(
            f"an S of {S.ndim} dimensions times X takes an X of 1 or 2 dimensions, not {X.dim()}."
        )
    inner = X.shape[0] if X.dim() else 0
    _check(S.shape, X.shape, S.shape[-1], inner)
    if S.batch_dims:
        raise SparseError("S @ X with batch dimensions takes 2 sparse dimensions: use S.unbatch() first.")
    flat = reshape(S, (-1, S.shape[-1]))
    return sparse_dense(flat, X).reshape(*S.shape[:-1], *X.shape[1:])


def _batched(S: SparseTensor, X: Tensor, flip: bool) -> Tensor:
    """Values [*batch, nnz] on one pattern, X [*batch, n, k] or shared: a product down the diagonal."""
    batch = torch.broadcast_shapes(S.values().shape[:-1], X.shape[:-2])
    count = batch.numel()
    values, X = _agree(S.values(), X)
    values = values.expand(*batch, -1).reshape(-1)
    n, k = X.shape[-2:]
    X = X.expand(*batch, n, k).reshape(count * n, k)
    out = product(S.pattern.repeat(count), values, X, flip)
    return out.reshape(*batch, S.pattern.size[1 if flip else 0], k)


@implements("addmm", method=False)
def addmm(C: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    out = matmul(a, b)
    if alpha != 1:
        out = out * alpha
    if beta == 0:
        return out
    if isinstance(out, SparseTensor) or isinstance(C, SparseTensor):
        return C * beta + out
    return add_into(out, C, beta)


@implements("addmv", method=False)
def addmv(c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return addmm(c, a, b, beta=beta, alpha=alpha)


@implements("linear", method=False)
def linear(x: Tensor, weight: Any, bias: Tensor | None = None) -> Any:
    """x [..., in] with a sparse weight [out, in]."""
    if isinstance(x, SparseTensor):
        out = matmul(x, weight.t())
    else:
        _check(x.shape, weight.shape, x.shape[-1], weight.pattern.size[1])
        flat = x.reshape(-1, x.shape[-1])
        # Turned here, once: backward needs it turned too.
        out = product(weight.pattern, weight.values(), flat.t().contiguous()).t()
        out = out.reshape(*x.shape[:-1], weight.pattern.size[0])
    return out if bias is None else out + bias


@implements("sampled_addmm")
def sampled_addmm(
    S: SparseTensor, A: Tensor, B: Tensor, *, beta: float = 1.0, alpha: float = 1.0
) -> SparseTensor:
    """beta * S + alpha * (A @ B) at the entries of S."""
    _check(A.shape, B.shape, A.shape[-1], B.shape[-2])
    values = sampled(S.pattern, A, B.mT)
    if alpha != 1:
        values = values * alpha
    return S.like(values if beta == 0 else values + beta * S.values())


def sddmm_at(pattern: Pattern, A: Tensor, B: Tensor) -> SparseTensor:
    """Sampled dense @ dense: A [r, k] @ B [k, c], computed at the pattern's places only."""
    _check(A.shape, B.shape, A.shape[-1], B.shape[-2])
    pattern = pattern.canonical()
    return make(pattern, sampled(pattern, A, B.mT))


_DIFFERENTIABLE = frozenset(
    {torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128}
)


def _whole_numbers(pattern: Pattern, values: Tensor, X: Tensor, flip: bool) -> Tensor:
    """Integers and booleans have no kernels and need no gradients."""
    source, target = (pattern._row, pattern._col) if flip else (pattern._col, pattern._row)
    wide = torch.int64 if values.dtype == torch.bool else values.dtype
    terms = values.to(wide)[:, None] * X[source].to(wide)
    out = terms.new_zeros(pattern.size[1 if flip else 0], X.shape[1]).index_add(0, target, terms)
    return out.to(values.dtype)


def _agree(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Autocast as torch.mm does; otherwise dtypes must be equal, as torch.mm asks."""
    if a.layout is not torch.strided or b.layout is not torch.strided:
        raise torchs_own()
    kind = a.device.type
    if torch.is_autocast_enabled(kind) and a.is_floating_point() and b.is_floating_point():
        low = torch.get_autocast_dtype(kind)
        return a.to(low), b.to(low)
    if a.dtype != b.dtype:
        raise SparseError(
            f"the sparse values are {a.dtype} and the dense operand is {b.dtype}: convert one with .to(dtype)."
        )
    return a, b


def _check(left: Any, right: Any, inner: int, other: int) -> None:
    if inner != other:
        raise SparseError(
            f"shapes {tuple(left)} and {tuple(right)} can't be multiplied: {inner} and {other} must be equal."
        )
