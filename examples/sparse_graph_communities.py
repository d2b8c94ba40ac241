"""Which community does a node belong to? A graph with planted communities, and attention that learns which edges to trust.

    python examples/sparse_graph_communities.py

Most edges join nodes of one community, many do not. A mean over neighbours is misled by these; learnt weights are not.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sparse_curve import draw, options, steps
from torch import Tensor, nn

from gradmend.sparse import Pattern, SparseTensor
from gradmend.sparse.nn import GraphAttention, GraphConv


def planted(nodes: int, communities: int, degree: int) -> tuple[Pattern, Tensor, Tensor]:
    """Places of edges, features, communities. Features say the community only faintly."""
    torch.manual_seed(0)
    label = torch.randint(0, communities, (nodes,))
    row = torch.arange(nodes).repeat_interleave(degree)
    order = torch.argsort(label, stable=True)
    start = torch.cat([torch.zeros(1).long(), torch.bincount(label, minlength=communities).cumsum(0)])
    size = start.diff()
    inside = order[start[label[row]] + (torch.rand(row.shape[0]) * size[label[row]]).long()]
    col = torch.where(torch.rand(row.shape[0]) < 0.5, inside, torch.randint(0, nodes, row.shape))
    own = torch.arange(nodes)
    pattern = Pattern(torch.stack([torch.cat([row, own]), torch.cat([col, own])]), (nodes, nodes)).canonical()
    means = torch.randn(communities, 16)
    return pattern, means[label] + 2.0 * torch.randn(nodes, 16), label


class Attention(nn.Module):
    def __init__(self, communities: int) -> None:
        super().__init__()
        self.first, self.second = (
            GraphAttention(16, 16, heads=4),
            GraphAttention(64, communities, concat=False),
        )

    def forward(self, pattern: Pattern, x: Tensor) -> Tensor:
        return self.second(pattern, F.elu(self.first(pattern, x)))


class Mean(nn.Module):
    def __init__(self, communities: int) -> None:
        super().__init__()
        self.first, self.second = GraphConv(16, 64, reduce="mean"), GraphConv(64, communities, reduce="mean")

    def forward(self, pattern: Pattern, x: Tensor) -> Tensor:
        S = SparseTensor(pattern, torch.ones(pattern.nnz))
        return self.second(S, F.elu(self.first(S, x)))


def main(words: list[str] | None = None) -> list[float]:
    parser = options(__doc__, "sparse_graph_communities", 150)
    parser.add_argument("--nodes", type=int, default=4000)
    given = parser.parse_args(words)
    pattern, x, label = planted(given.nodes, 8, 10)
    known = torch.rand(given.nodes) < 0.1
    curves: dict[str, list[float]] = {}
    for name, net in (("attention", Attention(8)), ("mean of neighbours", Mean(8))):
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=1e-3)
        losses: list[float] = []
        right = [0.0]
        for _ in steps(
            given.steps, lambda n=name, c=losses, r=right: f"{n}: loss {c[-1]:.3f}, right {r[0]:.0%}"
        ):
            optimizer.zero_grad()
            out = net(pattern, x)
            loss = F.cross_entropy(out[known], label[known])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            right[0] = (out.argmax(1) == label)[~known].double().mean().item()
        print(f"{name}: {right[0]:.1%} of the nodes without a label are right")
        curves[name] = losses
    draw(given.out, "Node classification: training loss", curves)
    return curves["attention"]


if __name__ == "__main__":
    main()
