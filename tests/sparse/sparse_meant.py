"""What each constructor means, said by torch's plainest operations: a dense tensor, or an error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse import Pattern, SparseTensor

Size = tuple[int, ...]


def _places(index: Any, size: Any) -> tuple[Tensor, Size]:
    """[dims, n] of whole numbers inside the size."""
    found = torch.as_tensor(index)
    if not found.numel() and size is not None and found.dim() < 3:
        found = torch.empty(len(size), 0, dtype=torch.int64)
    if found.dim() != 2 or found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise ValueError("indices")
    found = found.long()
    if size is None:
        if not found.shape[0]:
            raise ValueError("size")
        size = tuple(int(n) + 1 for n in found.amax(1)) if found.shape[1] else (0,) * found.shape[0]
    if len(size) != found.shape[0] or not size:
        raise ValueError("dimensions")
    limit = torch.tensor(size)[:, None]
    if bool(((found < 0) | (found >= limit)).any()):
        raise ValueError("bounds")
    return found, tuple(size)


class Long(Exception):
    """More entries than a dense tensor can have: right for a sparse one, and not to be compared."""


def _put(index: Tensor, values: Tensor, size: Size) -> Tensor:
    if math.prod(size) > 10**6:
        raise Long
    if values.dim() == 0 or values.shape[0] != index.shape[1]:
        raise ValueError("values")
    out = values.new_zeros(*size, *values.shape[1:])
    return out.index_put(tuple(index), values, accumulate=True)


def _coo(index: Any, values: Tensor, size: Any) -> Tensor:
    dims = len(torch.as_tensor(index)) if torch.as_tensor(index).dim() == 2 else len(size or ())
    if size is not None and len(size) != dims:
        if tuple(size[dims:]) != tuple(values.shape[1:]):
            raise ValueError("size")
        size = size[:dims]
    return _put(*_swap(_places(index, size), values))


def _swap(placed: tuple[Tensor, Size], values: Tensor) -> tuple[Tensor, Tensor, Size]:
    return placed[0], values, placed[1]


def _pattern(index: Any, size: Any) -> Tensor:
    """The places in the order given, as Pattern.indices() has them."""
    return _places(index, size)[0]


def _rows(pointers: Any, count: int) -> Tensor:
    ptr = torch.as_tensor(pointers)
    if int(ptr[0]) != 0 or int(ptr[-1]) != count or bool((ptr.diff() < 0).any()):
        raise ValueError("pointers")
    return torch.repeat_interleave(torch.arange(len(ptr) - 1), ptr.diff())


def _compressed(flip: bool, block: bool = False) -> Callable[..., Tensor]:
    def want(pointers: Any, inner: Tensor, values: Tensor, size: Any) -> Tensor:
        outer = _rows(pointers, inner.shape[0])
        h, w = values.shape[1:3] if block else (1, 1)
        n = (len(pointers) - 1) * h
        if size is None:
            wide = (int(inner.max()) + 1 if inner.numel() else 0) * w
            size = (wide, n) if flip else (n, wide)
        size = tuple(size)
        if len(size) < 2 or size[1 if flip else 0] != n:
            raise ValueError("size")
        places = torch.stack([inner, outer] if flip else [outer, inner])
        if block:
            at = torch.arange(h * w)
            places = torch.stack(
                [(places[0][:, None] * h + at // w).flatten(), (places[1][:, None] * w + at % w).flatten()]
            )
            values = values.flatten(0, 2)
        return _put(*_swap(_places(places, size[:2]), values))

    return want


def _edges(edges: Tensor, weight: Tensor | None, nodes: int | None) -> Tensor:
    if nodes is None:
        nodes = int(edges.max()) + 1 if edges.numel() else 0
    weight = torch.ones(edges.shape[1]) if weight is None else weight
    return _put(*_swap(_places(edges, (nodes, nodes)), weight))


def _dense(X: Tensor, mask: Any) -> Tensor:
    if X.dim() == 0:
        raise ValueError("a number")
    if mask is None:
        return X
    if isinstance(mask, Pattern):
        there = torch.zeros(mask.size, dtype=torch.bool)
        there[tuple(mask.indices())] = True
        mask = there
    if mask.shape != X.shape[: mask.dim()]:
        raise ValueError("mask")
    mask = mask.reshape(*mask.shape, *[1] * (X.dim() - mask.dim()))
    return torch.where(mask, X, torch.zeros_like(X))


def _sampled(pattern: Pattern, A: Tensor, B: Tensor) -> Tensor:
    full = A @ B
    if A.dim() < 2 or B.dim() < 2 or pattern.ndim != 2 or tuple(full.shape[-2:]) != pattern.size:
        raise ValueError("shapes")
    return torch.where(_dense(torch.ones(pattern.size), pattern).bool(), full, torch.zeros_like(full))


def _tensor(pattern: Pattern, values: Tensor) -> Tensor:
    return _put(pattern.indices(), values, pattern.size)


def _cg(S: SparseTensor, b: Tensor) -> Tensor:
    """Only for symmetric positive definite matrices, which random ones hardly ever are."""
    A = S.to_dense()
    if (
        A.dim() != 2
        or A.shape[0] != A.shape[1]
        or b.dim() == 0
        or b.shape[0 if b.dim() == 1 else -2] != A.shape[0]
        or b.dtype != A.dtype
    ):
        raise ValueError("shapes")
    if not (A.is_floating_point() or A.is_complex()) or b.dtype in (torch.bfloat16, torch.float16):
        raise ValueError("dtype")
    if b.numel() == 0 or (b.dim() == 1 and not bool(b.any())):
        return b
    definite = not bool((A.mH != A).any()) and bool((torch.linalg.eigvalsh(A) > 0).all())
    # Others are refused, or solved all the same: conjugate gradients end where the residual does, as for [[-3]].
    if not definite and not float(torch.linalg.cond(A)) < 1e3:
        raise Long("not positive definite, and hard to solve")
    return torch.linalg.solve(A, b)


def _product(crow: Tensor, col: Tensor, values: Tensor, X: Tensor) -> Tensor:
    rows = _rows(crow, col.shape[0])
    if X.dim() != 2 or values.dim() != 1 or values.dtype != X.dtype:
        raise ValueError("operands")
    return _put(*_swap(_places(torch.stack([rows, col]), (len(crow) - 1, X.shape[0])), values)) @ X


def _sorted(index: Any, size: Any) -> Tensor:
    found, shape = _places(index, size)
    key = torch.zeros(found.shape[1], dtype=torch.int64)
    for row, n in zip(found, shape, strict=True):
        key = key * n + row
    if bool((key.diff() <= 0).any()):
        raise ValueError("order")
    return found


def _keys(keys: Any, size: Size) -> Tensor:
    found = torch.as_tensor(keys)
    if found.dim() != 1 or found.is_floating_point():
        raise ValueError("keys")
    total = torch.Size(size).numel()
    if bool(((found < 0) | (found >= total)).any()):
        raise ValueError("bounds")
    return torch.stack(torch.unravel_index(found.long(), size))


MEANT: dict[str, Callable[..., Tensor]] = {
    "from_coo": _coo,
    "Pattern": _pattern,
    "Pattern.sorted": _sorted,
    "Pattern.from_keys": _keys,
    "from_csr": _compressed(False),
    "from_csc": _compressed(True),
    "from_bsr": _compressed(False, True),
    "from_edge_index": _edges,
    "from_dense": _dense,
    "sddmm": _sampled,
    "SparseTensor": _tensor,
    "cg": _cg,
    "block_diag": lambda a, b: torch.block_diag(a.to_dense(), b.to_dense()),
    "kernels.spmm": _product,
}
