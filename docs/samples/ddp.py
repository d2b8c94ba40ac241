import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
h = torch.sigmoid(model(torch.ones(2, 4)))
h += 1
h.sum().backward()
print(f"rank {dist.get_rank()}: {model.module.weight.grad.sum():.4f}")
dist.destroy_process_group()
