import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

lin = nn.Linear(4, 4)
feats = {"a": torch.sigmoid(lin(torch.randn(4))), "b": lin(torch.randn(4))}
feats["a"] *= feats["b"]
for k, v in feats.items():
    v.sqrt_() if k == "c" else v.exp_()
    v.mul_(0.5)
loss = sum(v.sum() for v in feats.values())
loss.backward()
report(loss.item(), lin)
