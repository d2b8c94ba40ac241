import json

import torch
import torch.nn as nn

torch.manual_seed(3)


def report(loss, module):
    print(json.dumps({"loss": loss.item(), "grads": [p.grad.flatten().tolist() for p in module.parameters()]}))


critic = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
actor = nn.Linear(3, 2)
opts = {"critic": torch.optim.SGD(critic.parameters(), lr=0.1), "actor": torch.optim.SGD(actor.parameters(), lr=0.1)}


def optimise(opt, loss):
    opt.zero_grad()
    loss.backward()
    opt.step()


for _ in range(2):
    s, a = torch.randn(6, 3), torch.randn(6, 2)
    critic_loss, loss = critic(a).pow(2).mean(), -critic(actor(s)).mean()
    optimise(opts["critic"], critic_loss)
    optimise(opts["actor"], loss)
report(loss, actor)
