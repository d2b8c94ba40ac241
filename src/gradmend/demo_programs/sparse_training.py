# The weights of a graph's edges are trained: by torch.sparse, then by gradmend.sparse. The same numbers come out.
import time

import torch

from gradmend.sparse import SparseTensor

torch.manual_seed(0)
nodes, edges, features, steps = 5000, 50_000, 32, 4
where = torch.randint(nodes, (2, edges)).unique(dim=1)
x, wanted = torch.randn(nodes, features), torch.randn(nodes, features)


def train(product):
    values = torch.ones(where.shape[1], requires_grad=True)
    optimizer = torch.optim.SGD([values], lr=0.5)
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = (product(values) - wanted).pow(2).mean()
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return values.detach(), loss.item(), min(times)


by_gradmend = train(lambda v: SparseTensor.from_coo(where, v, (nodes, nodes)) @ x)
by_torch = train(lambda v: torch.sparse.mm(torch.sparse_coo_tensor(where, v, (nodes, nodes)), x))
for name, (_, loss, seconds) in {"torch.sparse": by_torch, "gradmend.sparse": by_gradmend}.items():
    print(f"{name:16} loss {loss:.6f}   {1000 * seconds:8.1f} ms a step")
print(f"largest difference of a trained weight: {(by_torch[0] - by_gradmend[0]).abs().max():.1e}")
