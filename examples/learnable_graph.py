"""A graph whose edge weights are learned: messages by a sparse product, gradients for the edges alone.

python examples/learnable_graph.py
"""

import torch

from gradmend.sparse import SparseTensor

torch.manual_seed(0)
nodes, edges = 200, 1200
where = torch.randint(nodes, (2, edges)).unique(dim=1)
truth = torch.rand(where.shape[1])
features = torch.randn(nodes, 16)
wanted = SparseTensor.from_coo(where, truth, (nodes, nodes)) @ features

values = torch.full_like(truth, 0.5).requires_grad_()
optimizer = torch.optim.Adam([values], lr=0.05)
for _ in range(300):
    optimizer.zero_grad()
    loss = (SparseTensor.from_coo(where, values, (nodes, nodes)) @ features - wanted).pow(2).mean()
    loss.backward()
    optimizer.step()
error = (values.detach() - truth).abs().max()
print(f"loss {loss.item():.2e}, largest error of an edge {error:.3f}")
assert loss.item() < 1e-3
