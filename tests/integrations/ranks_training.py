"""Two ranks on gloo train one model in each way, and print its weights. `broken` writes what backward needs."""

import gc
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

broken = sys.argv[1:] == ["broken"]
dist.init_process_group("gloo")
rank = dist.get_rank()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head, self.spare = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(4, 2)

    def forward(self, x):
        h = self.inner(x).sigmoid()
        if broken:
            h += 1
        else:
            h = h + 1
        return self.head(h)


WAYS = {
    "plain": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "view": {"find_unused_parameters": True, "gradient_as_bucket_view": True},
    "no_sync": {"find_unused_parameters": True},
}


def main(way):
    net = Net()
    if way == "fsdp":
        fully_shard(net.inner)
        fully_shard(net.head)
        model = fully_shard(net)
    else:
        model = DistributedDataParallel(net, **WAYS[way])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for step in range(4):
        x = torch.randn(8, 4, generator=generator)
        if way == "no_sync" and step % 2 == 0:
            with model.no_sync():
                model(x).pow(2).mean().backward()
            continue
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if way == "fsdp":
        with tempfile.TemporaryDirectory() as folder:
            names = [folder]
            dist.broadcast_object_list(names)
            dcp.save({"model": model.state_dict()}, checkpoint_id=names[0])
            dcp.load({"model": model.state_dict()}, checkpoint_id=names[0])
            dist.barrier()
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    total = torch.cat([p.detach().reshape(-1) for p in whole]).double().sum().item()
    os.write(1, f"\nrank {rank} {way}: {total}\n".encode())  # at once: the other rank writes there too


for way in (*WAYS, "fsdp"):
    main(way)
gc.collect()  # DDP's cycles hold the process group
dist.destroy_process_group()
