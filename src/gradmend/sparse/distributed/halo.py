"""Rows of a sharded tensor that this rank needs: asked for once, then sent in every step, gradients back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.distributed.shards import Shards, counts, trade
from gradmend.sparse.errors import SparseError
from gradmend.sparse.kernels import checks


class Halo:
    """Who sends which rows to whom, for a list of different rows that ascends."""

    def __init__(self, shards: Shards, rows: Tensor) -> None:
        checks.places("rows", rows, rows.shape[0], shards.total)
        self.shards, self.rows = shards, rows
        self.receive = [int(n) for n in torch.bincount(shards.owner(rows), minlength=shards.world).tolist()]
        # The others are told which of their rows are wanted here.
        self.send = counts(shards.group, self.receive, rows.device)
        wanted = trade(shards.group, rows, self.receive, self.send)
        self.index = wanted - shards.bounds()[0]
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
