import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

net = nn.Linear(3, 2)
x = torch.randn(4, 3)
a = x.numpy()
y = net(x)
a *= 0.0
loss = y.pow(2).sum()
loss.backward()
report(loss.item(), net)
