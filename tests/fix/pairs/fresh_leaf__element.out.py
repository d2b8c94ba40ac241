import torch

x = torch.randn(4, requires_grad=True)
opt = torch.optim.SGD([x], lr=0.1)
x_new = x.clone()
x_new[0] = 5.0  # WRITE
loss = (x_new.sin() * torch.ones_like(x_new)).sum()  # the values
loss.backward()
print(x.grad, x.is_leaf)
x = loss
print(x)
