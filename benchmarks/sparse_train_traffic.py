"""Run by benchmarks/sparse_train.py --traffic on each rank: what a step of a sharded graph and a sharded table sends."""

from __future__ import annotations

import torch
from torch import distributed as dist

from gradmend.sparse import Pattern, SparseTensor
from gradmend.sparse.distributed import ShardedEmbedding, ShardedSparseTensor, traffic
from gradmend.sparse.optim import RowAdam


def most(number: int) -> int:
    held = torch.tensor([number])
    dist.all_reduce(held, op=dist.ReduceOp.MAX)
    return int(held)


def main() -> None:
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    g = torch.Generator().manual_seed(0)
    n, k = 20_000, 64
    # Communities, so that most neighbours are near: what a partitioned graph looks like.
    row = torch.randint(0, n, (200_000,), generator=g)
    near = (row + torch.randint(-200, 200, (200_000,), generator=g)) % n
    far = torch.randint(0, n, (200_000,), generator=g)
    for name, col in (("graph of communities", near), ("random graph", far)):
        pattern = Pattern(torch.stack([row, col]), (n, n)).canonical()
        S = ShardedSparseTensor.scatter(SparseTensor(pattern, torch.ones(pattern.nnz)))
        x = torch.randn(S.cols.count, k, requires_grad=True)
        traffic.take()
        (S @ x).sum().backward()
        sent = most(traffic.take())
        whole = 2 * n * k * 4 * (world - 1) // world
        if rank == 0:
            print(
                f"  {world} ranks, {name}, {n} nodes, {k} features: {sent / 1e6:.2f} MB "
                f"(all-gather of X and reduce of its gradient: {whole / 1e6:.2f} MB)"
            )
    table = ShardedEmbedding(1_000_000, 16)
    optimizer = RowAdam(table.parameters())
    ids = (torch.rand(20_000 // world, generator=torch.Generator().manual_seed(rank)) ** 3 * 1_000_000).long()
    traffic.take()
    table(ids).sum().backward()
    optimizer.step()
    sent = most(traffic.take())
    if rank == 0:
        print(f"  {world} ranks, table 1M x 16, 20,000 look-ups in all: {sent / 1e6:.2f} MB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
