import json

import torch

torch.manual_seed(0)
cell = torch.nn.GRUCell(2, 3)
inputs = torch.randn(4, 5, 2)
dones = torch.rand(4, 5) < 0.4
h = torch.zeros(5, 3)
loss = 0
for x, done in zip(inputs, dones):
    h = cell(x, h)
    loss = loss + h.square().mean()
    h = torch.where(done[:, None], 0.0, h)
loss.backward()
print(json.dumps({"loss": loss.item(), "grads": [p.grad.tolist() for p in cell.parameters()]}))
