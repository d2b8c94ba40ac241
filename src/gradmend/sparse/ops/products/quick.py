"""The shortest road for S @ X when nobody differentiates, transforms, compiles or casts.

A small product takes torch 5 us; the general road through batches, dtypes and patterns takes as long again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gradmend.sparse.kernels import spmm
from gradmend.sparse.kernels.plain import BAG, bag
from gradmend.sparse.kernels.team import forked
from gradmend.sparse.tensor import SparseTensor

_TINY = 1 << 13  # multiply-adds: no other kernel is ever chosen for so few


def bare_product(S: SparseTensor, X: Any) -> Tensor | None:
    """S @ X, or None when the general road must do."""
    if torch.compiler.is_compiling() or forked():
        return None
    values, pattern = S._values, S.pattern
    ptr = pattern._kept_ptr  # built already: the pattern is known to be no longer than it is full
    if (
        type(X) is not Tensor
        or ptr is None
        or values.dim() != 1
        or values.dtype is not X.dtype
        or values.shape[0] != pattern._indices.shape[1]
    ):
        return None
    if torch.is_grad_enabled() and (values.requires_grad or X.requires_grad):
        return None
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return None
    shape = X.shape
    if X.layout is not torch.strided:
        return None
    if len(shape) != 2 or len(pattern._size) != 2 or shape[0] != pattern._size[1]:
        return None
    if torch._C._is_any_autocast_enabled() or pattern._kept_local is not None or X.device != values.device:
        return None
    if X.dtype in BAG and 0 < values.numel() * shape[1] < _TINY and bag is not None:
        col = pattern._col
        if X.is_contiguous() and col.is_contiguous() and ptr.is_contiguous():  # it reads nothing else (2.13)
            return bag(X, col, ptr, False, 0, False, values, True, -1)[0]
    return spmm(ptr, pattern._col, values, X, None, pattern._size) if values.dtype.is_floating_point else None
