"""Sparse @ sparse: the pattern of the product, the product, and both gradients, each one walk over the pairs.

Compiled only. `usable` says when; functions/spspmm.py has the road of torch's own ops for everything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradmend.sparse.kernels.checks import address, operand
from gradmend.sparse.kernels.gate import SMALL, available
from gradmend.sparse.kernels.plain import wide
from gradmend.sparse.kernels.team import run, threads_for

_DTYPES = frozenset(
    {
        *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
        *(torch.complex64, torch.complex128, torch.int64, torch.int32),
    }
)


@dataclass(frozen=True)
class Pairs:
    """What meets what: rows of A (`ptr`), for each of its entries a run of B's, and the columns of those."""

    ptr: Tensor  # [rows + 1]
    first: Tensor  # [nnz of A]
    last: Tensor
    col: Tensor  # [nnz of B], among `columns`
    columns: int
    total: int

    def arrays(self) -> tuple[Any, ...]:
        length = np.concatenate([[0], np.cumsum((self.last - self.first).numpy())])
        ptr = self.ptr.numpy()
        return length[ptr], ptr, self.first.numpy(), self.last.numpy(), self.col.numpy(), self.columns


@dataclass(frozen=True)
class Product:
    """The pattern of the product, in CSR over the same rows and columns."""

    pairs: tuple[Any, ...]
    total: int
    ptr: np.ndarray[Any, Any]
    index: np.ndarray[Any, Any]  # [2, nnz]

    @property
    def lengths(self) -> tuple[int, int, int]:
        """Entries of A, of B and of the product."""
        return self.pairs[2].shape[0], self.pairs[4].shape[0], self.index.shape[1]

    @property
    def where(self) -> tuple[Any, ...]:
        return *self.pairs, self.ptr, self.index[1]


def usable(pairs: Pairs) -> bool:
    """Plain CPU memory, enough work to wait for a compiler, and a compiler."""
    return pairs.total >= SMALL and pairs.ptr.is_cpu and available()


def takes(*tensors: Tensor) -> bool:
    return all(t.dtype in _DTYPES and t.is_cpu and t.dim() == 1 for t in tensors)


def product_of(pairs: Pairs) -> Product:
    """Two walks: how many columns each row has, then which."""
    from gradmend.sparse.kernels import compiled_gustavson as compiled

    arrays = pairs.arrays()
    found = np.empty(pairs.ptr.shape[0] - 1, np.int64)
    run(compiled.count, pairs.total, *arrays, found)
    ptr = np.concatenate([[0], np.cumsum(found)])
    index = np.empty((2, int(ptr[-1])), np.int64)
    run(compiled.fill, pairs.total, *arrays, ptr, index[0], index[1])
    return Product(arrays, pairs.total, ptr, index)


def multiply(p: Product, a: Tensor, b: Tensor) -> Tensor:
    from gradmend.sparse.kernels import compiled_gustavson as compiled

    x, y = _array(a, p.lengths[0]), _array(b, p.lengths[1])
    out = np.zeros(p.index.shape[1], x.dtype)
    run(compiled.multiply, p.total, *p.where, x, y, out)
    return torch.from_numpy(out).to(a.dtype)


def left(p: Product, b: Tensor, g: Tensor) -> Tensor:
    """Summed into the entries of A."""
    from gradmend.sparse.kernels import compiled_gustavson as compiled

    y, z = _array(b, p.lengths[1]), _array(g, p.lengths[2])
    out = np.zeros(p.pairs[2].shape[0], y.dtype)
    run(compiled.left, p.total, *p.where, y, z, out)
    return torch.from_numpy(out).to(b.dtype)


def right(p: Product, g: Tensor, a: Tensor) -> Tensor:
    """Summed into the entries of B."""
    from gradmend.sparse.kernels import compiled_gustavson as compiled

    x, z = _array(a, p.lengths[0]), _array(g, p.lengths[2])
    out = np.zeros((threads_for(p.total), p.pairs[4].shape[0]), x.dtype)
    run(compiled.right, p.total, *p.where, x, z, out, named=True)
    return torch.from_numpy(_fold(out)).to(a.dtype)


def both(p: Product, a: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """left(b, g) and right(g, a)."""
    from gradmend.sparse.kernels import compiled_gustavson as compiled

    x, y, z = (_array(t, n) for t, n in zip((a, b, g), p.lengths, strict=True))
    d_a = np.zeros(x.shape[0], x.dtype)
    d_b = np.zeros((threads_for(p.total), y.shape[0]), y.dtype)
    run(compiled.both, p.total, *p.where, x, y, z, d_a, d_b, named=True)
    return torch.from_numpy(d_a).to(a.dtype), torch.from_numpy(_fold(d_b)).to(b.dtype)


def _fold(parts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    total: np.ndarray[Any, Any] = parts[0] if parts.shape[0] == 1 else parts.sum(axis=0)
    return total


def _array(t: Tensor, n: int) -> np.ndarray[Any, Any]:
    operand("the values", t, n)
    plain = t.detach().resolve_conj().resolve_neg().contiguous()
    address(plain, (n,), t.dtype)
    made: np.ndarray[Any, Any] = plain.to(wide(t.dtype)).numpy()
    return made
