# A sampler fills the same numpy buffer again and again. Nothing raises; the gradient is wrong.
import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(0)
rng = np.random.default_rng(0)
ids = np.zeros(4, dtype=np.int64)


def draw():
    ids[:] = rng.integers(0, 10, size=4)
    return torch.from_numpy(ids)


table = nn.Embedding(10, 3)
loss = sum(table(draw()).pow(2).sum() for _ in range(3))
loss.backward()
print(f"loss {loss.item():.4f}, gradient by row {[round(g, 2) for g in table.weight.grad.norm(dim=1).tolist()]}")
