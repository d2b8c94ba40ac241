import json

import torch
import torch.nn as nn

torch.manual_seed(3)


def report(loss, module):
    print(json.dumps({"loss": loss.item(), "grads": [p.grad.flatten().tolist() for p in module.parameters()]}))


class Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s):
        ctx.save_for_backward(s)
        ctx.x, ctx.n = x, 2
        return x ** 2 * s

    @staticmethod
    def backward(ctx, g):
        s, = ctx.saved_tensors
        return ctx.n * ctx.x * s * g, None


net = nn.Linear(3, 3)
h = net(torch.randn(4, 3))
y = Mix.apply(h, torch.rand(3))
h = h * 2
loss = (y + h).sum()
loss.backward()
report(loss, net)
