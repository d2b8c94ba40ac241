import torch

h = torch.ones(3, requires_grad=True).exp()
if h.numel():
    n = 1  # kept

    row = h[0]
    row *= 2  # WRITE
print(h)
