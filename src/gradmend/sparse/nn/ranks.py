"""Ranks of DistributedDataParallel must have one pattern: DDP sends round the values, and knows nothing of places.

When DDP is constructed all ranks compare, and take rank 0's places if some differ (seeds often do). From then on a small
buffer, which DDP itself sends round before each forward, tells whether a rank has come to have others.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradmend.sparse.errors import PatternError
from gradmend.sparse.nn import models
from gradmend.sparse.pattern import Pattern

if TYPE_CHECKING:
    from gradmend.sparse.nn.weight import SparseWeight


def mark(pattern: Pattern) -> list[int]:
    """Numbers that differ when patterns do: entries, and a hash of size and places."""
    import xxhash

    index = pattern.canonical()._indices.cpu().contiguous()
    text = f"{pattern.size}".encode() + index.numpy().tobytes()
    return [pattern.nnz, xxhash.xxh3_64_intdigest(text) >> 1]


def _active() -> Any:
    """The DDP whose forward is running."""
    return vars(DistributedDataParallel).get("_active_ddp_module")


def check(weight: SparseWeight) -> None:
    """Called at each forward; costs an attribute outside of DDP."""
    ddp = _active()
    if ddp is None or torch.compiler.is_compiling():
        return
    said = (
        f"the pattern of a sparse weight on rank {torch.distributed.get_rank(ddp.process_group)} is no longer "
        f"that of rank 0, so their values would be added up at different places: load the same state on all "
        f"ranks."
    )
    if not weight.fingerprint.is_cpu:  # the device compares: the host does not wait for it
        mine = torch.tensor(mark_of(weight)).to(weight.fingerprint.device, non_blocking=True)
        torch._assert_async((weight.fingerprint == mine).all(), said)
    elif weight.fingerprint.tolist() != mark_of(weight):
        raise PatternError(said)


def mark_of(weight: SparseWeight) -> list[int]:
    found = weight._mark
    if found is None or found[0] is not weight._pattern:
        found = weight._mark = (weight._pattern, mark(weight._pattern))
    return found[1]


def agree(module: nn.Module, group: Any, verified: bool = True) -> None:
    """Every sparse weight of the module takes rank 0's places, whatever their number."""
    from torch import distributed as dist

    from gradmend.sparse.nn.weight import SparseWeight

    if dist.get_world_size(group) == 1 or "fake" in dist.get_backend(group):
        return
    weights = {
        name: m for name, m in module.named_modules() if isinstance(m, SparseWeight) and not m.values.is_meta
    }
    models.compare(module, weights, group, verified)
    for weight in weights.values():
        _agree(weight, group)


def _agree(weight: SparseWeight, group: Any) -> None:
    from torch import distributed as dist

    first, size = dist.get_global_rank(group, 0), weight._pattern.size
    mine = torch.tensor(mark_of(weight), device=weight.values.device)
    marks = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(marks, mine, group=group)
    if all(torch.equal(mark, mine) for mark in marks):
        return
    places = weight.pattern._indices.new_empty(len(size), int(marks[0][0]))
    if dist.get_rank(group) == 0:
        places.copy_(weight.pattern._indices)
    dist.broadcast(places, first, group=group)
    weight.adopt(Pattern(places, size))


def leave_alone(module: nn.Module) -> None:
    """DDP ignores parameters whose rows lie on many ranks: each rank has others."""
    own = [
        f"{prefix}.{name}".lstrip(".")
        for prefix, part in module.named_modules()
        for name in getattr(part, "sharded", ())
        if isinstance(getattr(type(part), "sharded", None), tuple)
    ]
    if own:
        ignored = [*getattr(module, "_ddp_params_and_buffers_to_ignore", ()), *own]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ignored)


def install() -> None:
    """DDP sends parameters round when it is made, and would do so to other places: the places go first."""
    plain = DistributedDataParallel.__init__
    if getattr(plain, "__module__", "") == __name__:
        return

    @functools.wraps(plain, assigned=("__name__", "__qualname__", "__doc__"))
    def __init__(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        from torch import distributed as dist

        if dist.is_available() and dist.is_initialized() and isinstance(module, nn.Module):
            mesh, group = kwargs.get("device_mesh"), kwargs.get("process_group")
            group = group or (mesh.get_group(mesh_dim=0) if mesh is not None else dist.group.WORLD)
            agree(module, group, kwargs.get("init_sync", True))
            leave_alone(module)
        plain(self, module, *args, **kwargs)

    DistributedDataParallel.__init__ = __init__  # type: ignore[method-assign]
