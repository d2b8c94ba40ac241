import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

G, D = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
g_opt, d_opt = torch.optim.SGD(G.parameters(), lr=0.1), torch.optim.SGD(D.parameters(), lr=0.1)
losses = []
for it in range(3):
    fake = G(torch.randn(6, 3))
    score = D(fake)
    d_loss = F.softplus(score).mean() + F.softplus(-D(torch.randn(6, 4))).mean()
    g_loss = F.softplus(-score).mean()
    d_opt.zero_grad()
    d_loss.backward(retain_graph=True)
    d_opt.step()
    g_opt.zero_grad()
    g_loss = F.softplus(-D(fake)).mean()
    g_loss.backward()
    g_opt.step()
    losses += [d_loss.item(), g_loss.item()]
report(losses, G)
