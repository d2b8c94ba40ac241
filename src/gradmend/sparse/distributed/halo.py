"""Rows of a sharded tensor that this rank needs: asked for once, then sent in every step, gradients back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from gradmend.sparse.distributed.shards import Shards, trade
from gradmend.sparse.errors import OutsideError, SparseError
from gradmend.sparse.kernels import checks
from gradmend.sparse.kernels.grouping import grouped


class Halo:
    """Who sends which rows to whom, for a list of different rows that ascends."""

    def __init__(self, shards: Shards, rows: Tensor) -> None:
        checks.places("rows", rows, rows.shape[0], shards.total)
        ends = torch.full((1,), rows.shape[0], device=rows.device)
        self._plan(shards, rows, _counted(shards, rows, ends).tolist())

    @classmethod
    def of_ids(cls, shards: Shards, ids: Tensor) -> tuple[Halo, Tensor]:
        """Of rows in any order, some named often, and which of the halo's rows each of them is.

        The host reads once what it must know of a device: how many rows go where, and whether all are in the table.
        """
        n = ids.shape[0]
        if ids.is_cpu or n == 0:
            groups = grouped(ids, shards.total, known=True)
            return cls(shards, groups.rows), groups.each
        ordered, order = torch.sort(ids.to(torch.int64), stable=True)
        first = torch.ones_like(ordered, dtype=torch.bool)
        torch.ne(ordered[1:], ordered[:-1], out=first[1:])
        seg = first.cumsum(0) - 1
        rows = torch.full_like(ordered, shards.total).scatter_(0, seg, ordered)  # what is no row comes last
        different = seg[-1:] + 1
        counted = _counted(shards, rows, different)
        *numbers, count, low, high = torch.cat([counted, different, ordered[:1], ordered[-1:]]).tolist()
        if low < 0 or high >= shards.total:
            raise OutsideError(
                f"ids go from {low} to {high}, and the table has the rows 0 to {shards.total - 1}."
            )
        made = object.__new__(cls)
        made._plan(shards, rows[:count], numbers)
        return made, torch.empty_like(seg).index_copy_(0, order, seg)

    def _plan(self, shards: Shards, rows: Tensor, numbers: list[int]) -> None:
        self.shards, self.rows = shards, rows
        self.receive, self.send = numbers[: shards.world], numbers[shards.world :]
        # The others are told which of their rows are wanted here.
        wanted = trade(shards.group, rows, self.receive, self.send)
        self.index = wanted - shards.bounds()[0]
        if self.index.is_cpu:  # on a device, that they are in the table was checked where they were asked for
            checks.places("rows asked for", self.index, self.index.shape[0], max(shards.count, 1))

    def fetch(self, local: Tensor) -> Tensor:
        """[rows, ...]: the rows named, wherever they are; differentiable."""
        if local.shape[0] != self.shards.count:
            raise SparseError(f"this rank has {self.shards.count} rows, and was given {local.shape[0]}.")
        return self.give(local.index_select(0, self.index))

    def give(self, asked: Tensor) -> Tensor:
        """This rank's rows that others asked for -> the rows named; differentiable, to any order."""
        made: Tensor = _Trade.apply(asked, self, False)
        return made


def _counted(shards: Shards, rows: Tensor, end: Tensor) -> Tensor:
    """[2 * ranks]: how many of these rows, up to `end`, come from each rank, and how many each wants of this one."""
    marks = torch.arange(1, shards.world, device=rows.device) * max(shards.run, 1)
    cuts = torch.searchsorted(rows, marks).clamp(max=end)
    receive = torch.cat([torch.zeros_like(end), cuts, end]).diff()
    there = torch.empty_like(receive)
    dist.all_to_all_single(there, receive, group=shards.group)
    return torch.cat([receive, there])


class _Trade(torch.autograd.Function):
    """Rows to those who asked for them or, `home`, back to those who have them: each is the other's backward."""

    @staticmethod
    def forward(rows: Tensor, halo: Halo, home: bool) -> Tensor:
        send, receive = (halo.receive, halo.send) if home else (halo.send, halo.receive)
        return trade(halo.shards.group, rows, send, receive)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.halo, ctx.home = inputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _Trade.apply(grads[0], ctx.halo, not ctx.home), None, None
