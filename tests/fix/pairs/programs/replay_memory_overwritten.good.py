import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

net = nn.Linear(3, 1)
memory = torch.randn(4, 3)
losses = []
for i in range(3):
    sample = memory[i].clone()
    value = net(sample).pow(2).sum()
    memory[i] = torch.randn(3)
    value.backward()
    losses.append(value.item())
report(losses, net)
