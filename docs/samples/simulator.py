import torch

rate = torch.tensor(0.5, requires_grad=True)
state = torch.zeros(10, 3)
state[0] = torch.tensor([0.9, 0.1, 0.0])
for t in range(1, 10):
    s, i, r = state[t - 1]  # several views of one call: PyTorch refuses the writes below
    new = rate * s * i
    state[t, 0] = s - new
    state[t, 1] = i + new - 0.1 * i
    state[t, 2] = r + 0.1 * i
state[-1, 1].backward()
print(rate.grad)
