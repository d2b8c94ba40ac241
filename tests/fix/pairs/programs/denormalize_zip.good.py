import json

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


def report(losses, module):
    grads = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    print(json.dumps({"loss": losses, "grads": grads}))

def denormalize(img, mean, std):
    for i, (t, m, s) in enumerate(zip(img, mean, std)):
        img[i].mul_(s).add_(m)
    return img


gen = nn.Linear(4, 12)
img = denormalize(gen(torch.randn(4)).view(3, 2, 2), [0.1, 0.2, 0.3], [2.0, 3.0, 4.0])
loss = img.pow(2).sum()
loss.backward()
report(loss.item(), gen)
