import torch
import torch.nn as nn


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        h = torch.sigmoid(self.up(x))
        h *= 2
        return x + self.down(h)


def step():
    return nn.Sequential(*(Layer(8192) for _ in range(130))), torch.ones(1, 2048, 8192)
