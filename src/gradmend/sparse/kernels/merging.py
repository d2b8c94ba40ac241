"""Ascending lists of numbers merged, and runs of entries written out: compiled where it pays, torch's ops elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from gradmend.sparse.kernels.gate import available

_FEW = 1 << 12  # numbers below which nobody waits for a compiler


def _usable(total: int, *tensors: Tensor) -> bool:
    if total < _FEW or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return all(t.is_cpu and t.dtype is torch.int64 for t in tensors) and available()


def union(a: Tensor, b: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ascending keys, each once, and their places [dims, n] -> the places of all, where those of a went, and of b."""
    n, m = a.shape[0], b.shape[0]
    if not _usable(n + m, a, b, first, second):
        at = torch.searchsorted(b, a)
        both = torch.zeros_like(a, dtype=torch.bool) if m == 0 else b[at.clamp(max=m - 1)] == a
        common = both.cumsum(0)
        left = torch.arange(n, device=a.device) + at - (common - both.to(common.dtype))
        before = torch.searchsorted(a, b)  # how many of a are smaller, and how many of them b has too
        shared = torch.cat([common.new_zeros(1), common])[before]
        right = torch.arange(m, device=a.device) + before - shared
        index = first.new_empty(first.shape[0], n + m - int(common[-1]) if n else m)
        index[:, right], index[:, left] = second, first
        return index, left, right
    from gradmend.sparse.kernels import compiled_merging

    index = torch.empty(first.shape[0], n + m, dtype=torch.int64)
    left, right = torch.empty(n, dtype=torch.int64), torch.empty(m, dtype=torch.int64)
    given = (t.contiguous().numpy() for t in (a, b, first, second, index, left, right))
    found = compiled_merging.union(*given)
    index = index[:, :found]
    return index if found * 4 >= (n + m) * 3 else index.contiguous(), left, right


def intersection(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending keys, each once -> where the common ones are in a, and in b."""
    n, m = a.shape[0], b.shape[0]
    if not _usable(n + m, a, b):
        if m == 0:
            return a.new_empty(0), a.new_empty(0)
        at = torch.searchsorted(b, a).clamp_(max=m - 1)
        kept = (b[at] == a).nonzero().squeeze(1)
        return kept, at[kept]
    from gradmend.sparse.kernels import compiled_merging

    left, right = (torch.empty(min(n, m) + 1, dtype=torch.int64) for _ in range(2))
    found = compiled_merging.intersection(*(t.contiguous().numpy() for t in (a, b, left, right)))
    return left[:found].clone(), right[:found].clone()


def runs(first: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Runs of entries, one after the other: which run each is of, and the entry."""
    total = int(count.sum())
    if _usable(total, first, count):
        from gradmend.sparse.kernels import compiled_merging

        which, entry = (torch.empty(total, dtype=torch.int64) for _ in range(2))
        compiled_merging.runs(*(t.contiguous().numpy() for t in (first, count, which, entry)))
        return which, entry
    which = torch.repeat_interleave(
        torch.arange(first.shape[0], device=first.device), count, output_size=total
    )
    before = count.cumsum(0) - count
    return which, torch.arange(total, device=first.device) + (first - before)[which]
