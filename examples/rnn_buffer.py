"""An RNN that fills a buffer step by step, and reads from it what it wrote. PyTorch refuses it; no needed value changes,
or all of them can be healed.

    gradmend run --heal examples/rnn_buffer.py
"""

import torch

torch.manual_seed(0)
steps, batch, dim = 6, 3, 4
weight = torch.randn(dim, dim, requires_grad=True)
inputs = torch.randn(steps, batch, dim)
states = torch.zeros(steps + 1, batch, dim)
for t in range(steps):
    states[t + 1] = torch.tanh(states[t] @ weight + inputs[t])
    states[t + 1] *= 0.9
loss = states[1:].pow(2).mean()
loss.backward()
print(f"loss {loss.item():.4f}, gradient {weight.grad.norm():.4f}")
