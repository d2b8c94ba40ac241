import json
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(30)


class Detect(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 5, 1)

    def forward(self, x):
        y = self.conv(x).permute(0, 2, 3, 1).sigmoid()
        return torch.cat([(y[..., 0:2] * 2.0 - 0.5) * 8, (y[..., 2:4] * 2) ** 2 * 4, y[..., 4:]], -1)


net = Detect()
p = net(torch.randn(1, 2, 3, 3))
loss = p[..., :4].pow(2).mean() + p[..., 4].mean()
loss.backward()

print(json.dumps({'loss': loss.item(), 'grads': {n: p.grad.flatten().tolist() for n, p in net.named_parameters() if p.grad is not None}}))
