"""One table over two ranks, row-wise Adagrad: ShardedEmbedding beside torchrec's sharded collection (CPU time of rank 0).

    torchrun --standalone --nproc-per-node=2 benchmarks/sparse_train_torchrec.py

torchrec's planner offers no row-wise sharding for a CPU, so that its table is split by columns.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch import distributed as dist

from gradmend.sparse.distributed import ShardedEmbedding
from gradmend.sparse.optim import RowAdagrad

ROWS, WIDTH, LOOKED_UP, ROUNDS = 1_000_000, 16, 20_000, 20
Step = Callable[[Tensor], None]


def ours() -> Step:
    table = ShardedEmbedding(ROWS, WIDTH)
    optimizer = RowAdagrad(table.parameters(), by_row=True)

    def step(ids: Tensor) -> None:
        optimizer.zero_grad()
        table(ids).square().sum().backward()
        optimizer.step()

    return step


def torchrec() -> Step:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import ShardingEnv, ShardingType

    table = EmbeddingBagConfig(name="t", embedding_dim=WIDTH, num_embeddings=ROWS, feature_names=["f"])
    whole = EmbeddingBagCollection(tables=[table], device=torch.device("meta"))
    fused = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.01}
    sharder = EmbeddingBagCollectionSharder(fused_params=fused)
    world, every = dist.get_world_size(), dist.group.WORLD
    limits = {"t": ParameterConstraints(sharding_types=[ShardingType.COLUMN_WISE.value])}
    topology = Topology(world_size=world, local_world_size=world, compute_device="cpu")
    plan = EmbeddingShardingPlanner(topology=topology, constraints=limits).collective_plan(
        whole, [sharder], every
    )
    env = ShardingEnv.from_process_group(every)
    model = DistributedModelParallel(
        whole, env=env, device=torch.device("cpu"), plan=plan, sharders=[sharder]
    )

    def step(ids: Tensor) -> None:
        lengths = torch.ones(ids.shape[0], dtype=torch.int64)
        out = model(KeyedJaggedTensor.from_lengths_sync(keys=["f"], values=ids, lengths=lengths))
        out = out.wait() if hasattr(out, "wait") else out
        out.values().square().sum().backward()

    return step


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    g = torch.Generator().manual_seed(rank)
    batches = [(torch.rand(LOOKED_UP // world, generator=g) ** 3 * ROWS).long() for _ in range(4)]
    steps = {"gradmend, by rows": ours()}
    try:
        steps["torchrec, by columns"] = torchrec()
    except ImportError as why:  # alike on all ranks
        print(f"torchrec is not installed: {why}")
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(ROUNDS + 1):
        for name, step in steps.items():
            dist.barrier()
            start = time.process_time()
            step(batches[i % 4])
            times[name].append(time.process_time() - start)
    if rank == 0:
        for name, found in times.items():
            print(f"{name:24} {1e3 * min(found[1:]):7.2f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
