import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

cell, head = nn.RNNCell(3, 4), nn.Linear(4, 1)
h = torch.zeros(2, 4)
losses = []
for t in range(4):
    h = cell(torch.randn(2, 3), h)
    loss = head(h).pow(2).mean()
    loss.backward(retain_graph=True)
    losses.append(loss.item())
report(losses, cell)
