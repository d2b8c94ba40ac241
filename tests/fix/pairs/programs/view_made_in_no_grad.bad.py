import json
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(50)


net = nn.Linear(3, 4)
h = torch.tanh(net(torch.randn(5, 3)))
with torch.no_grad():
    row = h[0]
row *= 2
loss = (h * h).sum()
loss.backward()

print(json.dumps({'loss': loss.item(), 'grads': {n: p.grad.flatten().tolist() for n, p in net.named_parameters() if p.grad is not None}}))
