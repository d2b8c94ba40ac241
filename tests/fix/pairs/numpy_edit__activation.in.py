import torch

h = torch.randn(4).requires_grad_().tanh()
if h.numel():
    a = h.detach().numpy()  # WRITE
    a[a < 0] = 0  # negative ones
    a *= 255
print(a.mean(), h)
