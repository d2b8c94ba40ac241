import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

from torch.utils.checkpoint import checkpoint

lin, out = nn.Linear(4, 4), nn.Linear(4, 1)
x = torch.randn(5, 4)
h = checkpoint(lambda t: torch.sin(lin(t)), x, use_reentrant=False)
x.mul_(0.1)
loss = out(h + x).pow(2).sum()
loss.backward()
report(loss.item(), lin)
