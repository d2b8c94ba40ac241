import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        h = torch.sigmoid(self.a(x))
        h *= 2
        g = torch.exp(self.b(h))
        g[g > 1] = 1.0
        z = g.sqrt()
        z.add_(h)
        return self.c(z)


net = Net()
loss = net(torch.randn(5, 4)).pow(2).sum()
loss.backward()
report(loss.item(), net)
