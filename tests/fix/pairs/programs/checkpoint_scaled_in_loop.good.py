import json

import torch
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        return torch.tanh(self.linear(x) * self.scale)


blocks = torch.nn.ModuleList([Block() for _ in range(2)])
x = torch.randn(5, 4)
for b in blocks:
    x = checkpoint(b, x, use_reentrant=False)
x.square().mean().backward()
for b in blocks:
    b.scale.mul_(0.9)
print(json.dumps({"grads": [p.grad.tolist() for p in blocks.parameters()], "scale": blocks[0].scale.tolist()}))
