import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
losses = []
for it in range(3):
    loss = net(torch.randn(6, 4)).pow(2).mean()
    # keep the weights small
    with torch.no_grad():
        for p in net.parameters():
            p.clamp_(-0.2, 0.2)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
report(losses, net)
