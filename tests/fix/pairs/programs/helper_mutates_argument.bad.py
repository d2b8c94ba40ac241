import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

def clip(t, lo, hi):
    t.clamp_(lo, hi)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        h = torch.exp(self.a(x))
        clip(h, 0.5, 1.5)
        return self.b(h)


net = Net()
loss = net(torch.randn(5, 4)).pow(2).sum()
loss.backward()
report(loss.item(), net)
