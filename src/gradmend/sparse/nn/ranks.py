"""Ranks of DistributedDataParallel must have one pattern: DDP sends round the values, and knows nothing of places.

At the first forward inside DDP all ranks compare, and take rank 0's places if some differ (seeds often do). From then
on a small buffer, which DDP itself sends round before each forward, tells whether a rank has come to have others.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from gradmend.sparse.errors import PatternError
from gradmend.sparse.pattern import Pattern

if TYPE_CHECKING:
    from gradmend.sparse.nn.weight import SparseWeight

_met: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()


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
    group, seen = ddp.process_group, _met.get(weight)
    if seen is None or seen() is not ddp:
        _agree(weight, ddp)
        _met[weight] = weakref.ref(ddp)
    elif weight.fingerprint.tolist() != mark_of(weight):
        raise PatternError(
            f"the pattern of a sparse weight on rank {torch.distributed.get_rank(group)} is no longer that "
            f"of rank 0, so their values would be added up at different places: load the same state on all ranks."
        )


def mark_of(weight: SparseWeight) -> list[int]:
    found = weight._mark
    if found is None or found[0] is not weight._pattern:
        found = weight._mark = (weight._pattern, mark(weight._pattern))
    return found[1]


def _agree(weight: SparseWeight, ddp: Any) -> None:
    from torch import distributed as dist

    group = ddp.process_group
    if dist.get_world_size(group) == 1:
        return
    device = weight.values.device
    mine = torch.tensor(mark_of(weight), device=device)
    marks = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(marks, mine, group=group)
    found = {tuple(m.tolist()) for m in marks}
    if len(found) == 1:
        return
    if len({n for n, _ in found}) > 1:
        raise PatternError(
            f"ranks have sparse weights with {sorted(n for n, _ in found)} entries: build them with one pattern."
        )
    places: Tensor = weight.pattern._indices.clone()
    dist.broadcast(places, dist.get_global_rank(group, 0), group=group)
    weight.adopt(Pattern(places, weight._pattern.size))
