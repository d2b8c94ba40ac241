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
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        g = torch.sigmoid(self.a(x))
        g = g.mul(2).sub(1)  # to [-1, 1]
        return g


net = Net()
loss = net(torch.randn(5, 4)).pow(2).sum()
loss.backward()
report(loss.item(), net)
