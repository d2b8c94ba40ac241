import json
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(26)


net = nn.Linear(4, 4)
x = torch.rand(1, 4)
h = torch.sigmoid(net(x))
h = h * 255
loss = (h * h).sum() / 255 ** 2
loss.backward()

print(json.dumps({'loss': loss.item(), 'grads': {n: p.grad.flatten().tolist() for n, p in net.named_parameters() if p.grad is not None}}))
