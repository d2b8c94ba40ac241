"""Fresh memory for large results.

A fresh 43 MB output costs more in page faults (10,000 of 4 KB) than the product that fills it. Where the kernel
leaves huge pages to be asked for, as most Linux systems do, asking makes that 20 faults.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import torch
from torch import Tensor

_HUGE = 1 << 21
_MADV_HUGEPAGE = 14
_LARGE = 4 * _HUGE


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
    length = out.numel() * out.element_size()
    if length >= _LARGE and _madvise is not None:
        start = out.data_ptr()
        first = -(-start // _HUGE) * _HUGE
        last = (start + length) // _HUGE * _HUGE
        _madvise(first, last - first, _MADV_HUGEPAGE)  # a refusal changes nothing but speed
    return out
