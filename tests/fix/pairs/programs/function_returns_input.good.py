import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

class Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g


lin = nn.Linear(4, 4)
y = Keep.apply(lin(torch.randn(5, 4)))
y = y * 2
loss = y.pow(2).sum()
loss.backward()
report(loss.item(), lin)
