"""Norms: vector norms over any dimensions, and the matrix norms that need no decomposition."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.autograd.segment import safe_root, segment_sum
from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import ArgumentError, SparseError
from gradmend.sparse.helpers.dims import no_more, whole, wrap
from gradmend.sparse.ops.reductions.extremes import _amax
from gradmend.sparse.ops.reductions.reduce import Reduction, sum
from gradmend.sparse.tensor import SparseTensor


@implements("vector_norm")
def vector_norm(
    S: SparseTensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    if dtype is not None:
        S = S.to(dtype)
    _real_or_complex(S)
    if isinstance(ord, bool) or not isinstance(ord, int | float):
        raise ArgumentError(f"a vector norm's order is a number, not {ord!r}.")
    if ord in (math.inf, -math.inf):
        return _amax(_size_of(S), dim, keepdim, ord > 0)
    if ord == 0:
        return sum(S.like((S._values != 0).to(_real(S.dtype))), dim, keepdim)
    if ord == 1:
        return sum(_size_of(S), dim, keepdim)
    r = Reduction(S, dim, keepdim, "norm")
    size = r.values.abs() if ord != 2 or not r.values.is_complex() else r.values
    powers = _square(size) if ord == 2 else _power(size, ord)
    root = safe_root(segment_sum(powers, r.segs), ord)
    if ord < 0:
        # A zero to a negative power is infinite, and the root of that is zero: those that are stored too.
        nothing = segment_sum((r.values == 0).long(), r.segs) + r.zeros
        root = torch.where(nothing > 0, torch.zeros_like(root), root)
    return r.done(root, 0)


def _real_or_complex(S: SparseTensor) -> None:
    if not (S.is_floating_point() or S.is_complex()):
        raise SparseError(f"a norm takes floating-point or complex numbers, not {S.dtype}: say dtype=.")


def _size_of(S: SparseTensor) -> SparseTensor:
    return S.like(S._values.abs())


def _square(v: Tensor) -> Tensor:
    return (v * v.conj()).real if v.is_complex() else v * v


def _power(size: Tensor, p: float) -> Tensor:
    """size ** p, with no gradient where size is 0."""
    live = size != 0
    return torch.where(live, torch.where(live, size, torch.ones_like(size)) ** p, torch.zeros_like(size))


def _real(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype


@implements("norm")
def norm(
    S: SparseTensor,
    p: Any = "fro",
    dim: Any = None,
    keepdim: bool = False,
    out: Any = None,
    dtype: torch.dtype | None = None,
) -> Any:
    """torch.norm: all entries are one vector unless dim says otherwise."""
    no_more("norm", {"out": out})
    if p in ("fro", None):
        p = 2
    if isinstance(p, str):
        raise SparseError(f"norm {p!r} of a sparse tensor needs a decomposition: use S.to_dense().")
    return vector_norm(S, p, dim, keepdim, dtype=dtype)


def linalg_norm(
    S: SparseTensor,
    ord: Any = None,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """torch.linalg.norm: a matrix norm when `ord` is given and there are two dimensions."""
    if ord is not None and dim is None and S.ndim > 2:
        raise SparseError(f"linalg.norm of {S.ndim} dimensions takes dim= where it takes ord=.")
    dims: Any = dim if dim is None or isinstance(dim, list | tuple) else (whole(dim),)
    if dims is not None and len(dims) not in (1, 2):
        raise SparseError(
            f"linalg.norm takes one dimension or two, not {dim!r}; vector_norm takes any number."
        )
    matrix = (len(dims) == 2) if dims is not None else S.ndim == 2
    if ord == "fro" and not matrix:
        raise SparseError('the norm "fro" is a matrix\'s: for one dimension say 2.')
    if ord in (None, "fro") or not matrix:
        return vector_norm(S, 2 if ord in (None, "fro") else ord, dim, keepdim, dtype=dtype)
    return matrix_norm(S, ord, dims or (-2, -1), keepdim, dtype=dtype)


@implements("matrix_norm")
def matrix_norm(
    S: SparseTensor,
    ord: Any = "fro",
    dim: tuple[int, int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    if dtype is not None:
        S = S.to(dtype)
    _real_or_complex(S)
    if not isinstance(ord, str | int | float):
        raise ArgumentError(f"a matrix norm's order is a number or a word, not {ord!r}.")
    rows, cols = (wrap(S, d) for d in dim)
    if rows == cols:
        raise SparseError(f"a matrix norm takes two different dimensions, not {dim}.")
    if ord == "fro":
        return vector_norm(S, 2, dim, keepdim)
    if ord not in (1, -1, math.inf, -math.inf):
        raise SparseError(
            f"the matrix norm {ord!r} of a sparse tensor needs a decomposition: use S.to_dense()."
        )
    over, then = (rows, cols) if abs(ord) == 1 else (cols, rows)
    r = Reduction(_size_of(S), over, True, "norm")
    r.dense = False  # as a sparse vector: only the largest of these sums is wanted
    found = _amax(r.done(segment_sum(r.values, r.segs), 0), then, True, ord > 0)
    return found if keepdim else found.squeeze(max(rows, cols)).squeeze(min(rows, cols))


implements(also=(torch.linalg.norm,))(linalg_norm)


@implements("normalize", method=False)
def normalize(
    S: SparseTensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None
) -> SparseTensor:
    """F.normalize: rows (or columns) divided by their norm."""
    no_more("normalize", {"out": out})
    size = vector_norm(S, p, dim, keepdim=True)
    return S / size.clamp(min=eps)
