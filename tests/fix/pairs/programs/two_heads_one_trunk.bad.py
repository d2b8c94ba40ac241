import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

trunk, a, b = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 2)
z = torch.tanh(trunk(torch.randn(5, 3)))
la, lb = a(z).pow(2).mean(), b(z).abs().mean()
la.backward()
lb.backward()
report([la.item(), lb.item()], trunk)
