"""A ResNet block with `inplace=True` on the ReLU behind a BatchNorm (fine), and on the one behind a sigmoid gate (not).

gradmend run examples/resnet_block.py
gradmend fix examples/resnet_block.py
"""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.gate = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        gate = torch.sigmoid(self.gate(x))
        y = y * gate
        gate.sub_(0.5)
        return self.relu(y + x)


torch.manual_seed(0)
net = nn.Sequential(Block(4), Block(4))
loss = net(torch.randn(2, 4, 8, 8)).pow(2).mean()
loss.backward()
print(f"loss {loss.item():.4f}, gradient {net[0].conv1.weight.grad.norm():.4f}")
