import json
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(21)


net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
emb = torch.randn(2)
net[2].weight[:, 1] -= emb * 0.5
net[2].weight[:, 2] += emb * 2
loss = net(torch.randn(5, 3)).pow(2).mean()
loss.backward()

print(json.dumps({'loss': loss.item(), 'grads': {n: p.grad.flatten().tolist() for n, p in net.named_parameters() if p.grad is not None}}))
