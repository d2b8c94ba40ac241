import json

import torch
import torch.nn as nn

torch.manual_seed(3)


def report(loss, module):
    print(json.dumps({"loss": loss.item(), "grads": [p.grad.flatten().tolist() for p in module.parameters()]}))


class BlockDrop(nn.Module):
    def forward(self, x):
        keep = (torch.rand(x.shape[1]) > 0.4).float()
        x = torch.where(keep == 0, 0.0, x) * (keep.numel() / keep.sum())
        return x


net = nn.Sequential(nn.Linear(3, 6), BlockDrop(), nn.Tanh(), nn.Linear(6, 1))
loss = net(torch.randn(5, 3)).pow(2).mean()
loss.backward()
report(loss, net)
