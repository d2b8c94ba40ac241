"""Which rows a list of row numbers names, each once, and where: compiled where it pays, torch's sort everywhere else."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gradmend.sparse.kernels import checks
from gradmend.sparse.kernels.gate import available

_FEW = 1 << 10  # numbers below which nobody waits for a compiler
_MOST = 1 << 31  # a row and its place share a word


class Groups(NamedTuple):
    crow: Tensor  # [rows + 1]: where each row's places begin
    rows: Tensor  # the rows named, ascending
    order: Tensor  # [n]: the places of row i are order[crow[i]:crow[i + 1]], ascending

    @property
    def each(self) -> Tensor:
        """[n]: which of `rows` each place names."""
        seg = torch.repeat_interleave(
            torch.arange(self.rows.shape[0], device=self.rows.device), self.crow.diff()
        )
        return torch.empty_like(seg).index_copy_(0, self.order, seg)


def grouped(index: Tensor, bound: int, known: bool = False) -> Groups:
    """Row numbers below `bound`, in any order; `known`: somebody has looked at them already."""
    if not known:
        checks.places("rows", index, index.shape[0] if index.dim() else -1, bound)
    n = index.shape[0]
    if n < _FEW or n >= _MOST or bound > _MOST or not index.is_cpu or not available():
        return _by_sort(index.to(torch.int64))
    from gradmend.sparse.kernels import compiled_grouping

    index = index.to(torch.int64).contiguous()
    crow, rows, order = (torch.empty(m, dtype=torch.int64) for m in (n + 1, n, n))
    arrays = (t.numpy() for t in (crow, rows, order))
    found = compiled_grouping.group(index.numpy(), max(bound - 1, 1).bit_length(), *arrays)
    return Groups(crow[: found + 1], rows[:found], order)


def _by_sort(index: Tensor) -> Groups:
    ordered, order = torch.sort(index, stable=True)
    rows, counts = torch.unique_consecutive(ordered, return_counts=True)
    crow = torch.zeros(rows.shape[0] + 1, dtype=torch.int64, device=index.device)
    torch.cumsum(counts, 0, out=crow[1:])
    return Groups(crow, rows, order)
