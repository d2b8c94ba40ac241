"""Two ranks, gloo. DDP's buffer sync, an all_reduce of a saved tensor, plain training: the first word picks one.

With `untidy` after it, the program ends without ending the process group, as many do.
"""

import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

which = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("scale", torch.tensor([2.0, 3.0]))

    def forward(self, x):
        return self.linear(x) * self.scale


def buffers():
    net = DistributedDataParallel(Scaled(), broadcast_buffers=True)
    first = net(torch.ones(1, 2))
    if rank == 0:
        net.module.scale.data.mul_(2)
    with torch.no_grad():
        net(torch.ones(1, 2))
    first.sum().backward()
    return net.module.linear.bias.grad


def reduced():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    h = x * 3
    y = h * h
    dist.all_reduce(h.data)
    y.sum().backward()
    return x.grad


def live():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    h = x * 3
    dist.all_reduce(h)
    (h * 2).sum().backward()
    return x.grad


def clean():
    net = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(4, 2)).pow(2).sum().backward()
        optimizer.step()
    return net.module[0].bias.grad


print(rank, globals()[which]().tolist(), flush=True)
if "untidy" not in sys.argv:
    gc.collect()  # DDP's cycles hold the process group
    dist.destroy_process_group()
