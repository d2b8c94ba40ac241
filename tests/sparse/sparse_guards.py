"""Memory between two pages that can't be touched, for operands, patterns and results alike."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradmend.sparse import Pattern
from gradmend.sparse.kernels import gustavson, matmul, rows, segment

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None)


def guarded(t: Tensor) -> Tensor:
    """The same numbers, in memory whose last byte is followed by a page that can't be read or written."""
    t = t.detach().contiguous()
    size = t.numel() * t.element_size()
    if size == 0 or t.is_conj() or t.is_neg():
        return t
    pages = -(-size // PAGE)
    region = mmap.mmap(-1, (pages + 2) * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    for page in (start, start + (pages + 1) * PAGE):
        assert _libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), mmap.PROT_READ * 0) == 0
    at = (pages + 1) * PAGE - size
    memory = torch.from_numpy(np.frombuffer(region, np.uint8, size, at))
    return memory.view(t.dtype).view(t.shape).copy_(t)


def arm() -> None:
    """Patterns and results live between guards too, and nothing is too small for a kernel."""
    for module in (matmul, segment, rows, gustavson):
        module.SMALL = 0  # type: ignore[attr-defined]
    for module in (matmul, segment):
        empty = module.empty
        module.empty = lambda size, dtype, made=empty: guarded(made(size, dtype).zero_())  # type: ignore[attr-defined]
    plain = Pattern._set

    def _set(self: Pattern, indices: Tensor, size: Any, slot: Tensor | None = None) -> None:
        plain(self, guarded(indices) if type(indices) is Tensor else indices, size, slot)

    Pattern._set = _set  # type: ignore[method-assign]
