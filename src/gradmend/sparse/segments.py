"""Entries grouped by some of their dimensions: what every reduction is a sum over."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gradmend.sparse.errors import PatternError
from gradmend.sparse.places import is_wide, linear, pointers

if TYPE_CHECKING:
    from gradmend.sparse.pattern import Pattern


class Segments(NamedTuple):
    """Entries grouped by some of their dimensions (row sums group by row, column sums by column)."""

    ids: Tensor | None  # linear number of each group; None: every group 0..total-1, also the empty ones
    ptr: Tensor  # [groups + 1], where each group starts in the grouped order
    perm: Tensor | None  # grouped order -> canonical order; None: they are the same
    seg: Tensor  # [nnz], the group of each entry in canonical order
    total: int  # how many groups there are, empty ones included

    @property
    def groups(self) -> int:
        return self.ptr.shape[0] - 1


def group(pattern: Pattern, keep: tuple[int, ...]) -> Segments:
    size = tuple(pattern.size[d] for d in keep)
    total = math.prod(size)
    index = pattern._indices
    if pattern.ndim == 2 and len(keep) == 1 and not is_wide(total, pattern.nnz):
        # Rows and columns of a matrix: what its products keep serves here too.
        if keep == (0,):
            return Segments(None, pattern._ptr, None, pattern._row, total)
        starts, _, order = pattern._transposed()
        return Segments(None, starts, order, pattern._col, total)
    leading = keep == tuple(range(len(keep)))
    if not keep:
        key = torch.zeros(pattern.nnz, dtype=torch.int64, device=pattern.device)
    else:
        key = linear(index[list(keep)], size) if len(keep) > 1 else index[keep[0]]
    perm: Tensor | None = None
    ordered = key
    if not leading:
        ordered, perm = torch.sort(key, stable=True)
    if not is_wide(total, pattern.nnz):
        ptr = pointers(ordered, total)
        return Segments(None, ptr, perm, key, total)
    if torch.compiler.is_compiling():
        raise PatternError(
            "a reduction over a pattern with far fewer entries than rows can't be planned inside "
            "torch.compile: run it once outside (its plan is kept), or call it outside the compiled function."
        )
    ids, inverse, counts = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)
    ptr = torch.zeros(ids.shape[0] + 1, dtype=torch.int64, device=pattern.device)
    torch.cumsum(counts, 0, out=ptr[1:])
    if perm is None:
        seg = inverse
    else:
        seg = torch.empty_like(inverse)
        seg[perm] = inverse
    return Segments(ids, ptr, perm, seg, total)
