import torch

h = torch.randn(4).requires_grad_().tanh()
if h.numel():
    h = h.masked_fill(h < 0, 0)  # negative ones
    h = h * 255
    a = h.detach().numpy()
print(a.mean(), h)
