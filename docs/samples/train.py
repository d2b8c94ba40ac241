import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.inner = nn.Linear(dim, dim)
        self.outer = nn.Linear(dim, dim)

    def forward(self, x):
        out = torch.relu(self.inner(x))
        out += x
        return self.outer(out)


torch.manual_seed(0)
model = nn.Sequential(Block(8), Block(8))
loss = model(torch.randn(4, 8)).pow(2).mean()
loss.backward()
print(f"loss {loss.item():.4f}, first gradient {model[0].inner.weight.grad.norm():.4f}")
