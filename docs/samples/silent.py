import torch

torch.manual_seed(0)
weight = torch.randn(4, 4, requires_grad=True)
hidden = torch.sigmoid(torch.randn(8, 4) @ weight)
out = hidden.pow(2).mean()
hidden.data.clamp_(max=0.6)  # "only for the plot"
out.backward()
print(f"gradient {weight.grad.norm():.4f}")
