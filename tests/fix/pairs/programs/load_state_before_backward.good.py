import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

net, other = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)), nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))


def train_step(x):
    loss = net(x).pow(2).mean()
    loss.backward()
    net.load_state_dict(other.state_dict())
    return loss.item()


report(train_step(torch.randn(6, 4)), net)
