"""Which rank has which rows, and how rows travel between ranks.

Rows are split as DTensor's Shard(0) splits them: equal runs, of which the last may be shorter or empty.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from gradmend.sparse.errors import SparseError


class _Traffic:
    """Bytes that this rank has sent to others."""

    def __init__(self) -> None:
        self.sent = 0

    def take(self) -> int:
        """The bytes since it was last asked."""
        sent, self.sent = self.sent, 0
        return sent


traffic = _Traffic()


class Shards:
    """`total` rows over the ranks of a one-dimensional mesh (all ranks, unless given).

    `replicate`: the other dimension of a mesh of two, whose ranks have the same rows; False if they have others.
    """

    def __init__(
        self, total: int, mesh: DeviceMesh | None = None, replicate: DeviceMesh | bool | None = None
    ) -> None:
        mesh = _all_ranks() if mesh is None else mesh
        _one_dimension(mesh, replicate)
        self.total, self.mesh = int(total), mesh
        self.group: Any = mesh.get_group()
        self.replicas: Any = replicate.get_group() if isinstance(replicate, DeviceMesh) else None
        self.world, self.rank = mesh.size(), mesh.get_local_rank()
        self.run = -(-self.total // self.world) if self.total else 0

    def bounds(self, rank: int | None = None) -> tuple[int, int]:
        """The rows of a rank, [low, high)."""
        rank = self.rank if rank is None else rank
        return min(rank * self.run, self.total), min((rank + 1) * self.run, self.total)

    @property
    def device(self) -> torch.device:
        """Where the group's tensors are: under "nccl" it sends no others."""
        return torch.device(self.mesh.device_type)

    def sends(self, device: torch.device) -> None:
        """An error if the group can't send tensors of this device."""
        kinds = sorted({d.type for d in self.group._device_types})
        if device.type not in kinds:
            raise SparseError(
                f"the process group sends tensors on {', '.join(kinds)}, and these are on {device.type}: move them to "
                f"{kinds[0]}, or give init_process_group a backend for {device.type} too."
            )

    @property
    def count(self) -> int:
        low, high = self.bounds()
        return high - low

    def owner(self, rows: Tensor) -> Tensor:
        return torch.div(rows, max(self.run, 1), rounding_mode="floor")

    def wrap(self, local: Tensor) -> DTensor:
        """This rank's rows as part of a DTensor of all."""
        shape = torch.Size((self.total, *local.shape[1:]))
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            local.detach(), self.mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
        )

    def mine(self, full: Tensor) -> Tensor:
        """This rank's rows of a tensor that has all of them."""
        if full.shape[0] != self.total:
            raise SparseError(f"{self.total} rows are split, and the tensor has {full.shape[0]}.")
        low, high = self.bounds()
        return full[low:high]


def _all_ranks() -> DeviceMesh:
    if not dist.is_initialized():
        raise SparseError("there is no process group: start with torchrun and call init_process_group().")
    kinds = [d.type for d in dist.distributed_c10d._get_default_group()._device_types]
    accelerated = [kind for kind in kinds if kind != "cpu"]
    only = accelerated and ("cpu" not in kinds or dist.get_backend() == "nccl")
    return init_device_mesh(accelerated[0] if only else "cpu", (dist.get_world_size(),))


def _one_dimension(mesh: DeviceMesh, replicate: DeviceMesh | bool | None) -> None:
    """An error if gradients would have to be summed over ranks that nobody named."""
    if mesh.ndim != 1:
        raise SparseError(
            f"rows are split along one dimension of a mesh, not {mesh.ndim}: pass mesh['name'], and the other "
            f"dimension as replicate=mesh['other']."
        )
    if isinstance(replicate, DeviceMesh):
        if replicate.ndim != 1:
            raise SparseError(f"replicate takes one dimension of a mesh, not {replicate.ndim}.")
        return
    root = mesh._get_root_mesh() if hasattr(mesh, "_get_root_mesh") else mesh
    if replicate is None and root.size() != mesh.size():
        named = f"{mesh.mesh_dim_names[0]!r} is" if mesh.mesh_dim_names else "this is"
        raise SparseError(
            f"{named} one dimension of a mesh of {tuple(root.mesh.shape)} ranks, and gradients must be summed over the "
            f"other: pass it as replicate=mesh['other'], or replicate=False if those ranks have other parameters."
        )


def agree(shards: Shards, what: str, *numbers: int) -> None:
    """All ranks were given the same numbers, or all of them raise."""
    mine = torch.tensor(numbers, dtype=torch.int64, device=shards.device)
    every = [torch.empty_like(mine) for _ in range(shards.world)]
    dist.all_gather(every, mine, group=shards.group)
    if any(not torch.equal(one, mine) for one in every):
        said = ", ".join(str(tuple(one.tolist())) for one in every)
        raise SparseError(f"ranks disagree about {what}: {said}.")


def trade(group: Any, rows: Tensor, send: list[int], receive: list[int]) -> Tensor:
    """Sends runs of rows, one to each rank, and returns those received, in the order of ranks."""
    out = rows.new_empty(sum(receive), *rows.shape[1:])
    dist.all_to_all_single(out, rows.contiguous(), receive, send, group=group)
    here = dist.get_rank(group)
    one = rows[:1].numel() * rows.element_size() if rows.shape[0] else 0
    traffic.sent += one * (sum(send) - send[here])
    return out


def counts(group: Any, send: list[int], device: torch.device) -> list[int]:
    """How many rows each rank will send to this one."""
    there = torch.empty(len(send), dtype=torch.int64, device=device)
    dist.all_to_all_single(there, torch.tensor(send, dtype=torch.int64, device=device), group=group)
    return [int(n) for n in there.tolist()]


def route(group: Any, to: Tensor, *columns: Tensor) -> list[Tensor]:
    """Rows of several tensors to the ranks that `to` names; those that come here, in the order of ranks."""
    world = dist.get_world_size(group)
    order = torch.argsort(to, stable=True)
    send = torch.bincount(to, minlength=world).tolist()
    receive = counts(group, send, to.device)
    return [trade(group, x.index_select(0, order), send, receive) for x in columns]
