"""What each of two ranks runs, by torchrun: models that differ are told on both, and the process group lives on."""

from __future__ import annotations

import datetime
import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SPARSE_FIRST = "rank 0 has 'weight' of (8, 8) in float32 where rank 1 has none"


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank = dist.get_rank()
    if sys.argv[2] == "alone":  # only one rank has Gradmend, and nothing of it gets in the way
        if rank == 0:
            import gradmend.sparse.nn  # noqa: F401
        DDP(nn.Linear(8, 8))(torch.ones(2, 8)).sum().backward()
        told = {"alone": "ok" if ("gradmend.sparse.nn" in sys.modules) == (rank == 0) else "on both ranks"}
    else:
        told = differing(rank)
    Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(told))
    gc.collect()  # DDP's cycles hold the process group, and its threads must not outlive Python
    dist.barrier()
    dist.destroy_process_group()


def differing(rank: int) -> dict[str, str]:
    from gradmend.sparse.nn import SparseLinear

    def sparse(n: int = 8, **more: object) -> nn.Module:
        return SparseLinear(8, n, 0.3, **more)  # type: ignore[arg-type]

    def dense() -> nn.Module:
        return nn.Linear(8, 8)

    pair = nn.Sequential
    cases: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], str, str]] = {
        "sparse and dense": (sparse, dense, SPARSE_FIRST, "DDP expects same model across all ranks"),
        "dense and sparse": (
            dense,
            sparse,
            "DDP expects same model across all ranks",
            "rank 0 has none where rank 1 has 'weight' of (8, 8)",
        ),
        "two and one": (
            lambda: pair(sparse(), sparse()),
            lambda: pair(sparse()),
            "rank 0 has '1.weight' of (8, 8) in float32 where rank 1 has none",
            "rank 0 has '1.weight' of (8, 8) in float32 where rank 1 has none",
        ),
        "sizes": (sparse, lambda: sparse(9), "where rank 1 has 'weight' of (9, 8)", "'weight' of (9, 8)"),
        "dtypes": (
            sparse,
            lambda: sparse(dtype=torch.float64),
            "in float32 where rank 1 has 'weight' of (8, 8) in float64",
            "in float32 where rank 1 has 'weight' of (8, 8) in float64",
        ),
    }
    told: dict[str, str] = {}
    for name, (first, second, *words) in cases.items():
        try:
            DDP((first, second)[rank]())
            said = "nothing"
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        told[name] = "ok" if words[rank] in said else said
        dist.barrier()
    torch.manual_seed(rank)
    net = DDP(sparse())  # and one that is the same trains
    net(torch.ones(2, 8)).sum().backward()
    values = net.module.weight.values.detach()
    both = [torch.empty_like(values) for _ in range(2)]
    dist.all_gather(both, values)
    told["afterwards"] = "ok" if torch.equal(*both) else str(both)
    return told


if __name__ == "__main__":
    main()
