"""Fresh memory for large results.

A fresh 43 MB output costs more in page faults (10,000 of 4 KB) than the product that fills it. Where the kernel
leaves huge pages to be asked for, as most Linux systems do, asking makes that 20 faults.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

_HUGE = 1 << 21
_MADV_HUGEPAGE = 14
_LARGE = 4 * _HUGE
_LINE = 64  # a row that begins with a cache line is in fewer of them


def _find_madvise() -> Callable[[int, int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        madvise = ctypes.CDLL(None).madvise
    except (AttributeError, OSError):
        return None
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return madvise


_madvise = _find_madvise()


def empty(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Uninitialised CPU memory; large blocks ask for huge pages within their bounds."""
    out = torch.empty(size, dtype=dtype)
    _in_huge_pages(out)
    return out


def zeros(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose memory comes with the pages that are written, where torch.zeros writes all of them."""
    length = math.prod(size) * dtype.itemsize
    block = np.zeros(length + _LINE, np.uint8)
    start = -block.ctypes.data % _LINE
    out = torch.from_numpy(block[start : start + length]).view(dtype).view(size)
    _in_huge_pages(out)
    return out


def _in_huge_pages(t: Tensor) -> None:
    length = t.numel() * t.element_size()
    if length >= _LARGE and _madvise is not None:
        start = t.data_ptr()
        first = -(-start // _HUGE) * _HUGE
        last = (start + length) // _HUGE * _HUGE
        _madvise(first, last - first, _MADV_HUGEPAGE)  # a refusal changes nothing but speed
