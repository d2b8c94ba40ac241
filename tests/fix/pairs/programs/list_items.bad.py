import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

lin = nn.Linear(4, 4)
hs = [torch.tanh(lin(torch.randn(4))) for _ in range(3)]
for i in range(1, 3):
    hs[i] += hs[i - 1]
loss = sum((h ** 2).sum() for h in hs)
loss.backward()
report(loss.item(), lin)
