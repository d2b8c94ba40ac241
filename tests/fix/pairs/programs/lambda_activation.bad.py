import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

lin, out = nn.Linear(4, 4), nn.Linear(4, 1)
halve = lambda t: t.mul_(0.5)
h = torch.exp(lin(torch.randn(5, 4)))
loss = out(halve(h)).pow(2).sum()
loss.backward()
report(loss.item(), lin)
