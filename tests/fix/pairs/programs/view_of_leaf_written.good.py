import json
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(34)


net = nn.Linear(4, 3)
emb = torch.randn(2, 3, 4, requires_grad=True)
img = torch.randn(2, 4)
flat = emb.view(-1, 4).index_copy(0, torch.tensor([1, 4]), img)
loss = net(flat.view(2, 3, 4)).pow(2).mean()
loss.backward()
print(json.dumps({"loss": loss.item(), "grads": {"emb": emb.grad.flatten().tolist(), "w": net.weight.grad.flatten().tolist()}}))
