# Each row of a state is computed from the row above. PyTorch refuses; no needed value ever changes.
import torch

torch.manual_seed(0)
weight = torch.randn(4, 4, requires_grad=True)
state = torch.zeros(5, 4)
state[0] = torch.randn(4)
state = state + 0 * weight.sum()
for row in range(1, 5):
    state[row] = torch.tanh(state[row - 1] @ weight)
loss = state[-1].sum()
loss.backward()
print(f"loss {loss.item():.4f}, gradient {weight.grad.norm():.4f}")
