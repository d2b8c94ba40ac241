import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

class Accum(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.state = torch.zeros(3)

    def forward(self, x):
        self.state = torch.tanh(self.lin(x) + self.state)
        out = self.state.pow(2)
        self.state *= 0.9
        return out


net = Accum()
loss = sum(net(torch.randn(3)).sum() for _ in range(3))
loss.backward()
report(loss.item(), net)
