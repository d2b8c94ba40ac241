import json
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(61)


x = torch.randn(4, requires_grad=True)
w = torch.randn(4)
x[0] = 5.0
x[2] *= 3
loss = (torch.sin(x) * w).sum()
loss.backward()

print(json.dumps({'loss': loss.item(), 'grads': {'x': x.grad.flatten().tolist()}}))
