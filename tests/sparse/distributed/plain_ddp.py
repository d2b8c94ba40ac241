"""Two tables with sparse gradients under DDP on gloo, PyTorch alone: now and then a rank dies of overwritten memory.

    torchrun --standalone --nproc-per-node=4 tests/sparse/distributed/plain_ddp.py [hook]

With `hook`, the gradients are summed by `gradmend.sparse.distributed.sparse_hook`. No test runs this file.
"""

from __future__ import annotations

import gc
import sys

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8, sparse=True)
        self.bag = nn.EmbeddingBag(50, 8, sparse=True, mode="sum")
        self.linear = nn.Linear(8, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.linear(self.table(ids).sum(1) + self.bag(ids))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for _ in range(30):
        torch.manual_seed(0)
        ddp = DDP(Net())
        if "hook" in sys.argv:
            from gradmend.sparse.distributed import sparse_hook

            ddp.register_comm_hook(None, sparse_hook)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        for step in range(10):
            optimizer.zero_grad()
            ids = torch.randint(0, 50, (16, 4), generator=torch.Generator().manual_seed(step))
            ddp(ids[rank::ranks]).square().mean().backward()
            optimizer.step()
        gc.collect()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
