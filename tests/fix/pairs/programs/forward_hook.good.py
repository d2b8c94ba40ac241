import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

net = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 2))
net[1].register_forward_hook(lambda m, i, o: o.mul(2))
loss = net(torch.randn(5, 4)).pow(2).sum()
loss.backward()
report(loss.item(), net)
