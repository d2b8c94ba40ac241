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


@implements("matmul", "smm", "hspmm", "__matmul__")
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


def _of_dims(name: str, left: int, right: int) -> None:
    """A product that torch defines for these numbers of dimensions only."""

    def op(a: Any, b: Any, reduce: str | None = None, **unused: Any) -> Any:
        if getattr(a, "ndim", -1) != left or getattr(b, "ndim", -1) != right:
            shapes = [tuple(x.shape) if hasattr(x, "shape") else type(x).__name__ for x in (a, b)]
            raise SparseError(f"{name} takes {left} and {right} dimensions, not {shapes[0]} and {shapes[1]}.")
        return matmul(a, b, reduce)

    implements(name)(op)


for _name, _left, _right in (("mm", 2, 2), ("mv", 2, 1), ("bmm", 3, 3), ("dot", 1, 1)):
    _of_dims(_name, _left, _right)


@implements("__rmatmul__")
def rmatmul(a: Any, b: Any) -> Any:
    return matmul(b, a)


def sparse_dense(S: SparseTensor, X: Tensor) -> Any:
    """S [r, c] @ X [c], [c, k] or [..., c, k]; S [b, r, c] with batch dimensions; S [.., d] @ X [d, k]."""
    if not isinstance(X, Tensor):
        raise SparseError(f"S @ X takes a tensor, not {type(X).__name__}.")
    if S.dense_dim():
        if X.dim() not in (1, 2):
            raise SparseError(
                f"S has dense dimensions: S @ X takes an X of 1 or 2 dimensions, not {X.dim()}."
            )
        _check(S.shape, X.shape, S.shape[-1], X.shape[0])
        values, X = _agree(S.values(), X)
        return S.like(values @ X)
    if X.dim() == 0:
        raise SparseError("S @ X takes an X with at least one dimension; multiply by a number with S * x.")
    if S.pattern.ndim == 1:
        if S.batch_dims:
            raise SparseError("S @ X with batch dimensions takes 2 sparse dimensions: use S.unbatch() first.")
        _check(S.shape, X.shape, S.shape[0], X.shape[0] if X.dim() == 1 else X.shape[-2])
        return row_times(S, X)
    if S.pattern.ndim != 2:
        return _blocks_times(S, X) if X.dim() > 2 else _fold_rows(S, X)
    inner = X.shape[0] if X.dim() == 1 else X.shape[-2]
    _check(S.shape, X.shape, S.pattern.size[1], inner)
    if X.dim() == 1:
        return sparse_dense(S, X[:, None]).squeeze(-1)
    if S.batch_dims:
        return _batched(S, X, flip=False)
    return product(S.pattern, S.values(), X)


def dense_sparse(Y: Tensor, S: SparseTensor) -> Tensor:
    """Y [r], [m, r] or [..., m, r] @ S [r, c]."""
    if not isinstance(Y, Tensor):
        raise SparseError(f"X @ S takes a tensor, not {type(Y).__name__}.")
    if S.dense_dim():
        raise SparseError(
            "X @ S contracts a sparse dimension of an S with dense dimensions: write torch.einsum instead, "
            "such as einsum('mr,rcd->mcd', X, S)."
        )
    if S.pattern.ndim != 2:
        if S.pattern.ndim == 1 and not S.batch_dims and Y.dim():
            _check(Y.shape, S.shape, Y.shape[-1], S.shape[0])
            return row_times(S, Y.mT if Y.dim() > 1 else Y)
        if S.pattern.ndim == 1 or S.batch_dims or Y.dim() < 2:
            raise SparseError(f"X @ S takes an S with 2 sparse dimensions, not {S.pattern.ndim}.")
        return _blocks_times(S.transpose(-2, -1), Y.mT).mT
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
    A, B = _agree(A, B)
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
    lead = _broadcast(A.shape[:-2], B.shape[:-2])
    count = lead.numel()
    A, B = (x.expand(*lead, *x.shape[-2:]).reshape(count, *x.shape[-2:]) for x in (A, B))
    if count == 0 or pattern.nnz * A.shape[-1] > _SMALL_ITEM:
        # Each is work enough for all threads, and a pattern for the whole batch would be as long as the batch.
        rows = [sampled(pattern, a, b) for a, b in zip(A.unbind(0), B.unbind(0), strict=True)]
        out = torch.stack(rows) if rows else A.new_zeros(0, pattern.nnz)
    else:
        out = sampled(pattern.repeat(count), A.flatten(0, 1), B.flatten(0, 1))
    return out.reshape(*lead, pattern.nnz)


def _broadcast(*shapes: Any) -> torch.Size:
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError as error:
        said = " and ".join(str(tuple(s)) for s in shapes)
        raise SparseError(f"batch dimensions {said} don't broadcast.") from error


_SMALL_ITEM = 1 << 16


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


def _blocks_times(S: SparseTensor, X: Tensor) -> Any:
    """S [*batch, r, c], all dimensions sparse, @ X [*batch, c, k]: a product of blocks down a diagonal."""
    if S.batch_dims:
        raise SparseError("S @ X with batch dimensions takes 2 sparse dimensions: use S.unbatch() first.")
    lead = S.pattern.size[:-2]
    r, c = S.pattern.size[-2:]
    _check(S.shape, X.shape, c, X.shape[-2])
    batch = _broadcast(lead, X.shape[:-2])
    if tuple(batch) != lead:
        S = S.expand(*batch, r, c)
    pattern = S.pattern._diagonal_blocks()
    n, k = X.shape[-2:]
    X = X.expand(*batch, n, k).reshape(-1, k)
    if isinstance(S, SparseTensor) and S.batch_dims:
        S = S.unbatch()
        pattern = S.pattern._diagonal_blocks()
    out = product(pattern, S.values(), X)
    return out.reshape(*batch, r, k)


def _batched(S: SparseTensor, X: Tensor, flip: bool) -> Tensor:
    """Values [*batch, nnz] on one pattern, X [*batch, n, k] or shared: a product down the diagonal."""
    batch = _broadcast(S.values().shape[:-1], X.shape[:-2])
    count = batch.numel()
    values, X = _agree(S.values(), X)
    values = values.expand(*batch, -1).reshape(-1)
    n, k = X.shape[-2:]
    X = X.expand(*batch, n, k).reshape(count * n, k)
    rows = S.pattern.size[1 if flip else 0]
    if count == 0:
        return X.new_zeros(*batch, rows, k)
    out = product(S.pattern.repeat(count), values, X, flip)
    return out.reshape(*batch, rows, k)


@implements("addmm", method=False)
def addmm(C: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return _added(C, a, b, 2, beta, alpha)


def _added(C: Any, a: Any, b: Any, right: int, beta: float, alpha: float) -> Any:
    if any(not isinstance(x, Tensor | SparseTensor) for x in (C, a, b)) or (a.ndim, b.ndim) != (2, right):
        raise SparseError(
            f"addmm and addmv take a matrix times {right} dimensions, and a tensor to add to it."
        )
    out = matmul(a, b)
    if alpha != 1:
        out = out * alpha
    if beta == 0:
        return out
    if isinstance(out, SparseTensor) or isinstance(C, SparseTensor):
        return C * beta + out
    if _autocast(out.device.type) and C.is_floating_point():
        C = C.to(out.dtype)  # as torch.addmm: all of it in the lower precision
    if _broadcast(out.shape, C.shape) != out.shape:
        raise SparseError(
            f"a summand of the shape {tuple(C.shape)} doesn't fit a product of {tuple(out.shape)}."
        )
    return add_into(out, C, beta)


@implements("addmv", method=False)
def addmv(c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return _added(c, a, b, 1, beta, alpha)


@implements("linear", method=False)
def linear(x: Tensor, weight: Any, bias: Tensor | None = None) -> Any:
    """x [..., in] with a sparse weight [out, in]."""
    if isinstance(x, SparseTensor):
        out = matmul(x, weight.t())
    else:
        if (
            not isinstance(weight, SparseTensor)
            or weight.ndim != 2
            or weight.pattern.ndim != 2
            or not x.dim()
        ):
            raise SparseError(
                "linear takes x of the shape (..., in) and a sparse weight of the shape (out, in)."
            )
        _check(x.shape, weight.shape, x.shape[-1], weight.pattern.size[1])
        flat = x.reshape(-1, x.shape[-1])
        # Turned here, once: backward needs it turned too.
        out = product(weight.pattern, weight.values(), flat.t().contiguous()).t()
        out = out.reshape(*x.shape[:-1], weight.pattern.size[0])
    if bias is None:
        return out
    if _autocast(out.device.type) and bias.is_floating_point() and isinstance(out, Tensor):
        bias = bias.to(out.dtype)  # as nn.Linear: bias and all in the lower precision
    return out + bias


@implements("sampled_addmm")
def sampled_addmm(
    S: SparseTensor, A: Tensor, B: Tensor, *, beta: float = 1.0, alpha: float = 1.0
) -> SparseTensor:
    """beta * S + alpha * (A @ B) at the entries of S; A [..., r, k] and B [..., k, c] may be batches."""
    if not isinstance(S, SparseTensor) or S.dense_dim():
        raise SparseError("sampled_addmm takes a sparse S without dense dimensions, and dense A and B.")
    values = sampled(S.pattern, *_factors(A, B))
    if alpha != 1:
        values = values * alpha
    lead = _broadcast(values.shape[:-1], S.values().shape[:-1])
    if beta != 0:
        values = values + beta * S.values()
    elif values.shape[:-1] != lead:
        values = values.expand(*lead, -1)
    return make(S.pattern, values, len(lead))


def sddmm_at(pattern: Pattern, A: Tensor, B: Tensor) -> SparseTensor:
    """Sampled dense @ dense: A [..., r, k] @ B [..., k, c], computed at the pattern's places only.

    Leading dimensions (heads, batches) broadcast, and become batch dimensions of the result.
    """
    if isinstance(pattern, SparseTensor):
        pattern = pattern.pattern
    if not isinstance(pattern, Pattern):
        raise SparseError(f"sddmm takes a Pattern first, not {type(pattern).__name__}.")
    pattern = pattern.canonical()
    values = sampled(pattern, *_factors(A, B))
    return make(pattern, values, values.dim() - 1)


def _factors(A: Any, B: Any) -> tuple[Tensor, Tensor]:
    for x in (A, B):
        if not isinstance(x, Tensor):
            raise SparseError(f"a sampled product takes dense tensors, not {type(x).__name__}.")
        if x.dim() < 2:
            raise SparseError(
                f"a sampled product takes matrices, or batches of them, not the shape {tuple(x.shape)}."
            )
    _check(A.shape, B.shape, A.shape[-1], B.shape[-2])
    return A, B.mT


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


def _autocast(kind: str) -> bool:
    return kind != "meta" and torch.is_autocast_enabled(kind)


def _agree(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Autocast as torch.mm does; otherwise dtypes must be equal, as torch.mm asks."""
    if a.layout is not torch.strided or b.layout is not torch.strided:
        raise torchs_own()
    if a.device != b.device:
        raise SparseError(
            f"one operand is on {a.device}, the other on {b.device}: move one with .to(device)."
        )
    kind = a.device.type
    if _autocast(kind) and a.is_floating_point() and b.is_floating_point():
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
