import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

class Norm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, h):
        std = h.std(dim=-1, keepdim=True)
        h = h - h.mean(dim=-1, keepdim=True)
        h = h / (std + 1e-5)
        h = h * self.g
        return h


net = nn.Sequential(nn.Linear(4, 6), Norm(6), nn.Linear(6, 1))
loss = net(torch.randn(5, 4)).pow(2).sum()
loss.backward()
report(loss.item(), net)
