import json
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(24)


net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x, t = torch.randn(6, 3), torch.randn(6, 3)
out = net(x)
losses = [(out[:, i] - t[:, i]).pow(2).mean() for i in range(3)]
for loss in losses:
    loss.backward(retain_graph=True)
opt.step()

print(json.dumps({'loss': loss.item(), 'grads': {n: p.grad.flatten().tolist() for n, p in net.named_parameters() if p.grad is not None}}))
