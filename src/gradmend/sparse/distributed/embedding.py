"""A table whose rows lie on many ranks: ids are looked up where their rows are, and gradients go back there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from gradmend.sparse.distributed.ddp import summed
from gradmend.sparse.distributed.halo import Halo
from gradmend.sparse.distributed.shards import Shards, agree
from gradmend.sparse.errors import SparseError
from gradmend.sparse.nn.clip import part_of
from gradmend.sparse.nn.embedding import Rows, _inside


class ShardedEmbedding(nn.Module):
    """SparseEmbedding with its rows over the ranks of a mesh; each rank looks up ids of its own batch.

    `weight` is this rank's rows, an ordinary Parameter with a row-sparse gradient: a row-wise optimizer
    (gradmend.sparse.optim) then keeps state on this rank for the rows of this rank. Every rank must call forward and
    backward as often as the others.

    `average`: gradients are those of the mean of the ranks' losses, as DistributedDataParallel has them; else of the sum,
    and then they have a second derivative too. DistributedDataParallel leaves `weight` alone.

    `replicate`: the other dimension of a mesh of two. Its ranks have the same rows, and gradients are summed over them:
    `ShardedEmbedding(n, d, mesh["shard"], replicate=mesh["data"])`. The table is made on the device of the mesh.
    """

    sharded = ("weight",)  # parameters that DistributedDataParallel must not send round

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mesh: DeviceMesh | None = None,
        *,
        average: bool = True,
        full: Tensor | None = None,
        replicate: DeviceMesh | bool | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.average = num_embeddings, embedding_dim, average
        self.shards = Shards(num_embeddings, mesh, replicate)
        device = self.shards.device if device is None else torch.device(device)
        if device.type != "meta":
            self.shards.sends(device)
        agree(self.shards, "the size of a table", num_embeddings, embedding_dim)
        if full is not None:
            if tuple(full.shape) != (num_embeddings, embedding_dim):
                raise SparseError(
                    f"the table is {(num_embeddings, embedding_dim)}, and full is {tuple(full.shape)}."
                )
            mine = self.shards.mine(full).detach().to(device, copy=True)
        else:
            mine = torch.randn(self.shards.count, embedding_dim, device=device, dtype=dtype)
        if self.shards.replicas is not None and device.type != "meta":
            first = dist.get_global_rank(self.shards.replicas, 0)
            dist.broadcast(mine, first, group=self.shards.replicas)
        self.weight = nn.Parameter(mine)

    def forward(self, ids: Tensor) -> Tensor:
        rows, each = self.looked_up(ids)
        return rows.index_select(0, each).unflatten(0, ids.shape)

    def looked_up(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The different rows that ids name, wherever they are, and which of them each id names."""
        _inside(ids, self.num_embeddings)
        part_of(self.shards.group, self.weight)  # here, since copies and loaded states are other Parameters
        halo, each = Halo.of_ids(self.shards, ids.reshape(-1))
        weight: Tensor = self.weight
        if self.shards.replicas is not None:
            weight = _Replicated.apply(weight, self.shards.replicas, self.average)
        asked: Tensor = Rows.apply(weight, halo.index, None)
        if self.average and self.shards.world > 1:
            asked = _Mean.apply(asked, self.shards.world)
        return halo.give(asked), each

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.weight if keep_vars else self.shards.wrap(self.weight)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """From a DTensor, from this rank's rows, or from the whole table."""
        key = f"{prefix}weight"
        given = state_dict.get(key)
        if isinstance(given, DTensor):
            given = given.to_local()
        elif isinstance(given, Tensor) and given.shape[0] == self.num_embeddings != self.shards.count:
            given = self.shards.mine(given)
        held = dict(state_dict) if given is None else {**state_dict, key: given}
        super()._load_from_state_dict(held, prefix, *args)

    def extra_repr(self) -> str:
        low, high = self.shards.bounds()
        return f"{self.num_embeddings}, {self.embedding_dim}, rows {low} to {high} here"


class _Replicated(torch.autograd.Function):
    """A table as it is; its gradient is summed over the ranks that have the same rows."""

    @staticmethod
    def forward(table: Tensor, group: Any, average: bool) -> Tensor:
        return table.view_as(table)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.group, ctx.average = inputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise SparseError("a ShardedEmbedding with replicate= has first derivatives only.")
        total = summed(grads[0], ctx.group)
        return total / dist.get_world_size(ctx.group) if ctx.average else total, None, None


class _Mean(torch.autograd.Function):
    """Rows as they are; their gradients are divided by the number of ranks."""

    @staticmethod
    def forward(rows: Tensor, ranks: int) -> Tensor:
        return rows.view_as(rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.ranks = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _Divide.apply(grads[0], ctx.ranks), None


class _Divide(torch.autograd.Function):
    """No further: whether a derivative of gradients was divided already depends on what they went into."""

    @staticmethod
    def forward(grad: Tensor, ranks: int) -> Tensor:
        return grad / ranks

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise SparseError(
            "a ShardedEmbedding with average=True has first derivatives only: pass average=False, and divide the loss "
            "by the number of ranks."
        )
