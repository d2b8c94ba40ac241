"""Ranks of DistributedDataParallel must have the same sparse weights: else one sends what another does not wait for.

Asked through the store that the process group was made with, before any collective: a collective that not all ranks take
part in, or with other sizes, ends a process (gloo). A rank without sparse weights only says so, and waits for nobody.
"""

from __future__ import annotations

import itertools
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradmend.sparse.errors import PatternError

if TYPE_CHECKING:
    from gradmend.sparse.nn.weight import SparseWeight

# How often the ranks of a group have compared: a name for each time. Never less, since a store may outlive its group.
_asked: dict[tuple[int, ...], int] = {}


def compare(module: nn.Module, weights: dict[str, SparseWeight], group: Any, verified: bool) -> None:
    """An error on all ranks if some have other sparse weights. `verified`: DDP will compare parameters itself."""
    import xxhash
    from torch import distributed as dist

    store = dist.distributed_c10d._get_process_group_store(group)
    if store is None:  # MPI has none
        return
    ranks = tuple(dist.get_process_group_ranks(group))
    number = _asked[ranks] = _asked.get(ranks, 0) + 1
    place, me = f"gradmend/sparse/{number}", dist.get_rank(group)
    mine = [
        [name, list(w._pattern.size), str(w.values.dtype), list(w.values.shape[1:])]
        for name, w in weights.items()
    ]
    said = json.dumps([mine, sum(1 for _ in module.parameters())])
    store.set(f"{place}/{me}/all", said)
    store.set(f"{place}/{me}", xxhash.xxh3_64_hexdigest(json.dumps(mine).encode()))
    if not weights:
        return
    marks = _read(store, [f"{place}/{rank}" for rank in range(len(ranks))])
    other = next((rank for rank, mark in enumerate(marks) if mark != marks[0]), None)
    if other is None:
        return
    every = [json.loads(one) for one in _read(store, [f"{place}/{rank}/all" for rank in range(len(ranks))])]
    if verified and any(not held for held, _ in every):
        _release(max(count for _, count in every), next(iter(weights.values())).values.device, group)
    first = next(pair for pair in itertools.zip_longest(every[0][0], every[other][0]) if pair[0] != pair[1])
    raise PatternError(
        f"ranks have different sparse weights: rank 0 has {_told(first[0])} where rank {other} has {_told(first[1])}. "
        f"Build one model on all."
    )


def _read(store: Any, keys: list[str]) -> list[bytes]:
    from torch import distributed as dist

    try:
        found: list[bytes] = (
            store.multi_get(keys) if store.has_extended_api() else [store.get(k) for k in keys]
        )
    except dist.DistStoreError as error:
        raise PatternError(
            "some rank has not said which sparse weights it has: all ranks construct DistributedDataParallel, and all "
            "import gradmend.sparse.nn before."
        ) from error
    return found


def _release(most: int, device: torch.device, group: Any) -> None:
    """Ranks without sparse weights are on their way to DDP's own comparison: they are met there with another number of
    parameters than any has, and so DDP tells them that models differ."""
    from torch.distributed.utils import _verify_param_shape_across_processes

    with suppress(RuntimeError):  # what is the matter is said by our own error
        _verify_param_shape_across_processes(group, [torch.zeros(1, device=device)] * (most + 1))


def _told(weight: list[Any] | None) -> str:
    if weight is None:
        return "none"
    name, size, dtype, inner = weight
    return (
        f"{name!r} of {tuple(size)}{f' x {tuple(inner)}' if inner else ''} in {dtype.removeprefix('torch.')}"
    )
