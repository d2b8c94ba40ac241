"""Rows of a sharded tensor that this rank needs: asked for once, then sent in every step, gradients back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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
        made: Tensor = _Fetch.apply(local, self)
        return made

    def give(self, local: Tensor) -> Tensor:
        return trade(self.shards.group, local.index_select(0, self.index), self.send, self.receive)

    def back(self, grad: Tensor) -> Tensor:
        """[index, ...]: gradients of rows, brought to those who have them."""
        return trade(self.shards.group, grad, self.receive, self.send)


class _Fetch(torch.autograd.Function):
    @staticmethod
    def forward(local: Tensor, halo: Halo) -> Tensor:
        return halo.give(local)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        local, ctx.halo = inputs
        ctx.shape = local.shape

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        back = ctx.halo.back(grad.contiguous())
        return back.new_zeros(ctx.shape).index_add_(0, ctx.halo.index, back), None
