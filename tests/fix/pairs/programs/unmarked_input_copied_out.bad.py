import json

import torch
import torch.nn as nn

torch.manual_seed(3)


def report(loss, module):
    print(json.dumps({"loss": loss.item(), "grads": [p.grad.flatten().tolist() for p in module.parameters()]}))


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(3)
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return 3 * g


net = nn.Linear(3, 3)
h = net(torch.randn(4, 3))
y = Scale.apply(h)
loss = (y * torch.arange(3.0)).sum() + h.pow(2).sum()
loss.backward()
report(loss, net)
