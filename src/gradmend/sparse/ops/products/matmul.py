"""Products with dense operands: S @ X, X @ S, mv, addmm, F.linear."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse import dynamo
from gradmend.sparse.autograd.place import add_into
from gradmend.sparse.autograd.product import agree, autocast, broadcast, check_inner, product
from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import SparseError
from gradmend.sparse.helpers.dims import no_more
from gradmend.sparse.ops.products.quick import bare_product
from gradmend.sparse.tensor import SparseTensor


@implements("matmul", "__matmul__")
def matmul(a: Any, b: Any, reduce: str | None = None, *, out: Any = None) -> Any:
    if out is not None:
        no_more("a product", {"out": out})
    if type(a) is SparseTensor and reduce is None and (quick := bare_product(a, b)) is not None:
        return quick
    if not dynamo.mended:
        dynamo.check()
    if reduce is not None:
        from gradmend.sparse.ops.products.message import propagate

        return propagate(a, b, {"amax": "max", "amin": "min"}.get(reduce, reduce))
    if isinstance(a, SparseTensor) and isinstance(b, SparseTensor):
        from gradmend.sparse.ops.products.spspmm import sparse_sparse

        return sparse_sparse(a, b)
    if isinstance(a, SparseTensor):
        return sparse_dense(a, b)
    return dense_sparse(a, b)


@implements("smm", "hspmm")
def two_matrices(a: Any, b: Any, *, out: Any = None) -> Any:
    return matmul(a, b, out=out)


def _of_dims(name: str, left: int, right: int) -> None:
    """A product that torch defines for these numbers of dimensions only."""

    def op(a: Any, b: Any, reduce: str | None = None, *, out: Any = None, **options: Any) -> Any:
        no_more(name, {"out": out, **options})
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
        check_inner(S.shape, X.shape, S.shape[-1], X.shape[0])
        values, X = agree(S._values, X)
        return S.like(values @ X)
    if X.dim() == 0:
        raise SparseError("S @ X takes an X with at least one dimension; multiply by a number with S * x.")
    if S._pattern.ndim == 1:
        if S.batch_dims:
            raise SparseError("S @ X with batch dimensions takes 2 sparse dimensions: use S.unbatch() first.")
        check_inner(S.shape, X.shape, S.shape[0], X.shape[0] if X.dim() == 1 else X.shape[-2])
        return row_times(S, X)
    if S._pattern.ndim != 2:
        return _blocks_times(S, X) if X.dim() > 2 else _fold_rows(S, X)
    inner = X.shape[0] if X.dim() == 1 else X.shape[-2]
    check_inner(S.shape, X.shape, S._pattern.size[1], inner)
    if X.dim() == 1:
        return sparse_dense(S, X[:, None]).squeeze(-1)
    if S.batch_dims:
        return _batched(S, X, flip=False)
    return product(S._pattern, S._values, X)


def dense_sparse(Y: Tensor, S: SparseTensor) -> Tensor:
    """Y [r], [m, r] or [..., m, r] @ S [r, c]."""
    if not isinstance(Y, Tensor):
        raise SparseError(f"X @ S takes a tensor, not {type(Y).__name__}.")
    if S.dense_dim():
        raise SparseError(
            "X @ S contracts a sparse dimension of an S with dense dimensions: write torch.einsum instead, "
            "such as einsum('mr,rcd->mcd', X, S)."
        )
    if S._pattern.ndim != 2:
        if S._pattern.ndim == 1 and not S.batch_dims and Y.dim():
            check_inner(Y.shape, S.shape, Y.shape[-1], S.shape[0])
            return row_times(S, Y.mT if Y.dim() > 1 else Y)
        if S._pattern.ndim == 1 or S.batch_dims or Y.dim() < 2:
            raise SparseError(f"X @ S takes an S with 2 sparse dimensions, not {S._pattern.ndim}.")
        return _blocks_times(S.transpose(-2, -1), Y.mT).mT
    if Y.dim() == 0:
        raise SparseError("X @ S takes an X with at least one dimension; multiply by a number with x * S.")
    check_inner(Y.shape, S.shape, Y.shape[-1], S._pattern.size[0])
    if Y.dim() == 1:
        return dense_sparse(Y[None], S).squeeze(-2)
    if S.batch_dims:
        return _batched(S, Y.mT, flip=True).mT
    return product(S._pattern, S._values, Y.mT, flip=True).mT


def row_times(S: SparseTensor, X: Tensor) -> Tensor:
    """A sparse vector times a dense matrix: the rows of X that it names, weighed and summed."""
    values, X = agree(S._values, X)
    picked = X.movedim(-2, 0) if X.dim() > 1 else X
    picked = picked.index_select(0, S._pattern._row)
    return torch.tensordot(values, picked, dims=([0], [0]))


def _fold_rows(S: SparseTensor, X: Tensor) -> Any:
    """More sparse dimensions: all but the last are rows of one flat matrix."""
    from gradmend.sparse.ops.structure.shape import reshape

    if X.dim() > 2:
        raise SparseError(
            f"an S of {S.ndim} dimensions times X takes an X of 1 or 2 dimensions, not {X.dim()}."
        )
    inner = X.shape[0] if X.dim() else 0
    check_inner(S.shape, X.shape, S.shape[-1], inner)
    if S.batch_dims:
        raise SparseError("S @ X with batch dimensions takes 2 sparse dimensions: use S.unbatch() first.")
    flat = reshape(S, (-1, S.shape[-1]))
    return sparse_dense(flat, X).reshape(*S.shape[:-1], *X.shape[1:])


def _blocks_times(S: SparseTensor, X: Tensor) -> Any:
    """S [*batch, r, c], all dimensions sparse, @ X [*batch, c, k]: a product of blocks down a diagonal."""
    if S.batch_dims:
        raise SparseError("S @ X with batch dimensions takes 2 sparse dimensions: use S.unbatch() first.")
    lead = S._pattern.size[:-2]
    r, c = S._pattern.size[-2:]
    check_inner(S.shape, X.shape, c, X.shape[-2])
    batch = broadcast(lead, X.shape[:-2])
    if tuple(batch) != lead:
        S = S.expand(*batch, r, c)
    pattern = S._pattern._diagonal_blocks()
    n, k = X.shape[-2:]
    X = X.expand(*batch, n, k).reshape(-1, k)
    if isinstance(S, SparseTensor) and S.batch_dims:
        S = S.unbatch()
        pattern = S._pattern._diagonal_blocks()
    out = product(pattern, S._values, X)
    return out.reshape(*batch, r, k)


def _batched(S: SparseTensor, X: Tensor, flip: bool) -> Tensor:
    """Values [*batch, nnz] on one pattern, X [*batch, n, k] or shared: a product down the diagonal."""
    batch = broadcast(S._values.shape[:-1], X.shape[:-2])
    count = batch.numel()
    values, X = agree(S._values, X)
    values = values.expand(*batch, -1).reshape(-1)
    n, k = X.shape[-2:]
    X = X.expand(*batch, n, k).reshape(count * n, k)
    rows = S._pattern.size[1 if flip else 0]
    if count == 0:
        return X.new_zeros(*batch, rows, k)
    out = product(S._pattern.repeat(count), values, X, flip)
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
    if autocast(out.device.type) and C.is_floating_point():
        C = C.to(out.dtype)  # as torch.addmm: all of it in the lower precision
    if C.dtype != out.dtype:
        raise SparseError(
            f"a summand of {C.dtype} doesn't fit a product of {out.dtype}: convert it with .to(dtype)."
        )
    if broadcast(out.shape, C.shape) != out.shape:
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
        if weight.ndim != 2 and bias is not None:
            raise SparseError(f"linear with a bias takes a weight of (out, in), not {tuple(weight.shape)}.")
        out = matmul(x, weight.t())
    else:
        if (
            not isinstance(weight, SparseTensor)
            or weight.ndim != 2
            or weight._pattern.ndim != 2
            or not x.dim()
        ):
            raise SparseError(
                "linear takes x of the shape (..., in) and a sparse weight of the shape (out, in)."
            )
        check_inner(x.shape, weight.shape, x.shape[-1], weight._pattern.size[1])
        flat = x.flatten(0, -2) if x.dim() > 1 else x[None]
        # Turned here, once: backward needs it turned too.
        out = product(weight._pattern, weight._values, flat.t().contiguous()).t()
        out = out.reshape(*x.shape[:-1], weight._pattern.size[0])
    if bias is None:
        return out
    if autocast(out.device.type) and bias.is_floating_point() and isinstance(out, Tensor):
        bias = bias.to(out.dtype)  # as nn.Linear: bias and all in the lower precision
    return out + bias
