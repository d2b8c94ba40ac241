import torch

h = torch.ones(3, requires_grad=True).exp()
if h.numel():
    with torch.no_grad():  # just a look
        n = 1  # kept

        row = h[0]
    row *= 2  # WRITE
print(h)
