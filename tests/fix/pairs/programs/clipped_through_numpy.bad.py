import json

import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(3)


def report(loss, module):
    print(json.dumps({"loss": loss.item(), "grads": [p.grad.flatten().tolist() for p in module.parameters()]}))


def clip_parameters(module, c):
    for p in module.parameters():
        w = p.detach().numpy()
        np.clip(w, -c, c, out=w)


net = nn.Sequential(nn.Linear(4, 5), nn.LeakyReLU(0.2), nn.Linear(5, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(2):
    loss = net(torch.randn(6, 4)).mean()
    clip_parameters(net, 0.2)
    opt.zero_grad()
    loss.backward()
    opt.step()
report(loss, net)
