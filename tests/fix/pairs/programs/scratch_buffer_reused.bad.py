import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 3))
        self.register_buffer("buf", torch.zeros(2, 3))

    def forward(self, x):
        self.buf.copy_(x)
        return self.buf @ self.w


layer = Layer()
loss = sum(layer(torch.randn(2, 3)).pow(2).sum() for _ in range(3))
loss.backward()
report(loss.item(), layer)
