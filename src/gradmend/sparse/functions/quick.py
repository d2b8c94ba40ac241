"""The shortest road for S @ X when nobody differentiates, transforms, compiles or casts.

A small product takes torch 5 us; the general road through batches, dtypes and patterns takes as long again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gradmend.sparse.kernels import spmm
from gradmend.sparse.tensor import SparseTensor


def bare_product(S: SparseTensor, X: Any) -> Tensor | None:
    """S @ X, or None when the general road must do."""
    if torch.compiler.is_compiling():
        return None
    values, pattern = S._values, S.pattern
    ptr = pattern._ptr  # built already: the pattern is known to be no longer than it is full
    if (
        type(X) is not Tensor
        or ptr is None
        or X.dim() != 2
        or values.dim() != 1
        or values.dtype is not X.dtype
    ):
        return None
    if len(pattern._size) != 2 or X.shape[0] != pattern._size[1] or not values.dtype.is_floating_point:
        return None
    if torch.is_grad_enabled() and (values.requires_grad or X.requires_grad):
        return None
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return None
    if torch._C._is_any_autocast_enabled() or pattern._local is not None or X.device != values.device:
        return None
    return spmm(ptr, pattern.col, values, X)
