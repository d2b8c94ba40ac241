"""The shortest roads for S @ X and S @ S when nobody transforms, compiles or casts.

A small product takes torch 5 us; the general road through batches, dtypes and patterns takes as long again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gradmend.sparse.autograd.contract import bare
from gradmend.sparse.autograd.primitive import SpMM, apply
from gradmend.sparse.kernels import spmm, team
from gradmend.sparse.kernels.plain import BAG, bag
from gradmend.sparse.tensor import SparseTensor, make

_TINY = 1 << 13  # multiply-adds: no other kernel is ever chosen for so few
_PLAIN = (Tensor, torch.nn.Parameter)
_transforming, _casting = torch._C._are_functorch_transforms_active, torch._C._is_any_autocast_enabled
_recording = torch.is_grad_enabled


def bare_product(S: SparseTensor, X: Any) -> Any:
    """S @ X, or None when the general road must do."""
    if type(X) is SparseTensor:
        return _bare_pair(S, X)
    if type(X) not in _PLAIN or torch.compiler.is_compiling() or team._forked:
        return None
    values, pattern = S._values, S._pattern
    if type(values) not in _PLAIN:
        return None
    ptr = pattern._kept_ptr  # built already: the pattern is known to be no longer than it is full
    if ptr is None or values.dim() != 1 or pattern._kept_local is not None:
        return None
    dtype, nnz, size, shape = X.dtype, values.shape[0], pattern._size, X.shape
    if values.dtype is not dtype or nnz != pattern._indices.shape[1]:
        return None
    if _transforming() or forward_ad._current_level >= 0 or _casting():
        return None
    if len(shape) != 2 or len(size) != 2 or shape[0] != size[1]:
        return None
    if X.layout is not torch.strided or X.device != values.device or dtype not in BAG:
        return None
    if _recording() and (values.requires_grad or X.requires_grad):
        return None if values.is_meta else apply(SpMM, values, X, pattern, False)
    if 0 < nnz * shape[1] < _TINY and bag is not None:
        col = pattern._col
        if X.is_contiguous() and col.is_contiguous() and ptr.is_contiguous():  # it reads nothing else (2.13)
            return bag(X, col, ptr, False, 0, False, values, True, -1)[0]
    return spmm(ptr, pattern._col, values, X, None, size)


def _bare_pair(a: SparseTensor, b: SparseTensor) -> SparseTensor | None:
    """a @ b with the plan of the last product of these two patterns, whose shapes were looked at then."""
    found = a._pattern._product
    if found is None or found[0]() is not b._pattern or torch.compiler.is_compiling():
        return None
    x, y = a._values, b._values
    if type(x) not in _PLAIN or type(y) not in _PLAIN or x.dim() != 1 or y.dim() != 1:
        return None
    if x.dtype is not y.dtype or x.is_meta or x.device != y.device:
        return None
    if _recording() and (x.requires_grad or y.requires_grad):
        return None
    if _transforming() or forward_ad._current_level >= 0 or _casting():
        return None
    plan = found[1]
    return make(plan.pattern, bare(x, y, plan, 2))
