"""What a sparse tensor is beside its numbers: shape, dtype, device, place in a graph. Spelled as torch spells them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradmend.sparse.errors import OutsideError
from gradmend.sparse.methods import Methods
from gradmend.sparse.source import Picked, Source

if TYPE_CHECKING:
    from gradmend.sparse.pattern import Pattern


class Facts(Methods):
    """The part of SparseTensor that reads no value."""

    _pattern: Pattern
    _given: Tensor
    _source: Source | None
    batch_dims: int

    @property
    def nnz(self) -> int:
        return self._pattern.nnz

    def _nnz(self) -> int:
        return self._pattern.nnz

    @property
    def shape(self) -> torch.Size:
        lead, tail = self._outer()
        return torch.Size((*lead, *self._pattern.size, *tail))

    def _outer(self) -> tuple[torch.Size, torch.Size]:
        """The batch dimensions and the dense ones."""
        n, shape = self.batch_dims, self._given.shape
        return shape[:n], shape[n + (self._pattern.ndim if isinstance(self._source, Picked) else 1) :]

    def size(self, dim: int | None = None) -> Any:
        shape = self.shape
        if dim is None:
            return shape
        if not -len(shape) <= dim < len(shape):
            raise OutsideError(f"dimension {dim} doesn't exist: S has the shape {tuple(shape)}.")
        return shape[dim]

    @property
    def ndim(self) -> int:
        lead, tail = self._outer()
        return len(lead) + self._pattern.ndim + len(tail)

    def dim(self) -> int:
        return self.ndim

    def sparse_dim(self) -> int:
        return self._pattern.ndim

    def dense_dim(self) -> int:
        return len(self._outer()[1])

    def numel(self) -> int:
        return self.shape.numel()

    @property
    def density(self) -> float:
        return self._pattern.density

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return self._given.dtype

    @property
    def device(self) -> torch.device:
        return self._given.device

    @property
    def requires_grad(self) -> bool:
        return self._given.requires_grad

    @property
    def is_leaf(self) -> bool:
        return self._given.is_leaf

    @property
    def grad_fn(self) -> Any:
        return self._given.grad_fn

    @property
    def is_meta(self) -> bool:
        return self._given.is_meta

    @property
    def is_cpu(self) -> bool:
        return self._given.is_cpu

    @property
    def is_cuda(self) -> bool:
        return self._given.is_cuda

    @property
    def is_quantized(self) -> bool:
        return False

    def is_floating_point(self) -> bool:
        return self._given.is_floating_point()

    def is_complex(self) -> bool:
        return self._given.is_complex()
