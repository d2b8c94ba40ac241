import json
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(13)


class MoCo(nn.Module):
    def __init__(self, d=4, k=8):
        super().__init__()
        self.enc = nn.Linear(3, d)
        self.register_buffer("queue", F.normalize(torch.randn(d, k), dim=0))
        self.ptr = 0

    def enqueue(self, keys):
        n = keys.shape[0]
        self.queue[:, self.ptr:self.ptr + n] = keys.t()
        self.ptr = (self.ptr + n) % self.queue.shape[1]

    def forward(self, xq, xk):
        q = F.normalize(self.enc(xq), dim=1)
        with torch.no_grad():
            k = F.normalize(self.enc(xk), dim=1)
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.queue
        self.enqueue(k)
        return torch.cat([pos, neg], 1) / 0.2


net = MoCo()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    logits = net(torch.randn(4, 3), torch.randn(4, 3))
    loss = F.cross_entropy(logits, torch.zeros(4, dtype=torch.long))
    opt.zero_grad()
    loss.backward()
    opt.step()

print(json.dumps({'loss': loss.item(), 'grads': {n: p.grad.flatten().tolist() for n, p in net.named_parameters() if p.grad is not None}}))
