import torch

torch.manual_seed(0)
cell = torch.nn.RNNCell(3, 4)
optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
state = torch.zeros(1, 4)
for _ in range(3):
    state = cell(torch.ones(1, 3), state)  # carried over, and never detached
    optimizer.zero_grad()
    state.pow(2).sum().backward()
    optimizer.step()
