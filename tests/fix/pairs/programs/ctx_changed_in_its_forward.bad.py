import json

import torch
import torch.nn as nn

torch.manual_seed(3)


def report(loss, module):
    print(json.dumps({"loss": loss.item(), "grads": [p.grad.flatten().tolist() for p in module.parameters()]}))


class SquaredExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * 1
        ctx.y = y
        y.exp_()
        return y * y

    @staticmethod
    def backward(ctx, g):
        return 2 * torch.exp(2 * ctx.y) * g


net = nn.Linear(3, 3)
loss = SquaredExp.apply(net(torch.randn(4, 3))).sum()
loss.backward()
report(loss, net)
