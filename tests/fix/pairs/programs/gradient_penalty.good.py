import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

D = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
x = torch.randn(5, 3, requires_grad=True)
g = torch.autograd.grad(D(x).sum(), x, create_graph=True)[0]
n = g.norm(dim=1)
n = n - 1
loss = n.pow(2).mean()
loss.backward()
report(loss.item(), D)
