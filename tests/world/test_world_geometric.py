"""Graph networks of torch_geometric on a random graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from world_runs import Case, Training, World, training

pytest.importorskip("torch_geometric")
pytestmark = pytest.mark.world
world = World("torch-geometric")
NODES, FEATURES, CLASSES = 30, 8, 4


def _graph() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(NODES, FEATURES), torch.randint(NODES, (2, 120)), torch.randint(CLASSES, (NODES,))


def _nodes(make: Callable[[Any], torch.nn.Module], **more: Any) -> Callable[[], Training]:
    """Classify the nodes with a model of (x, edge_index)."""

    def case() -> Training:
        import torch_geometric.nn as gnn

        model = make(gnn)
        x, edges, y = _graph()
        return training(model, lambda: F.cross_entropy(model(x, edges, **more), y))

    return case


world.add("GCN", _nodes(lambda gnn: gnn.GCN(FEATURES, 16, 2, CLASSES, dropout=0.5, norm="batch")))
world.add("GraphSAGE", _nodes(lambda gnn: gnn.GraphSAGE(FEATURES, 16, 2, CLASSES, aggr="max")))
world.add("GIN", _nodes(lambda gnn: gnn.GIN(FEATURES, 16, 2, CLASSES, jk="cat")))
world.add("GAT", _nodes(lambda gnn: gnn.GAT(FEATURES, 16, 2, CLASSES, heads=2, v2=True)))
world.add("EdgeCNN", _nodes(lambda gnn: gnn.EdgeCNN(FEATURES, 16, 2, CLASSES)))
world.add("GraphUNet", _nodes(lambda gnn: gnn.GraphUNet(FEATURES, 16, CLASSES, depth=2)))
world.add("ChebConv", _nodes(lambda gnn: gnn.ChebConv(FEATURES, CLASSES, K=3)))
world.add("ARMAConv", _nodes(lambda gnn: gnn.ARMAConv(FEATURES, CLASSES, num_stacks=2, num_layers=2)))
world.add(
    "TransformerConv", _nodes(lambda gnn: gnn.TransformerConv(FEATURES, CLASSES, heads=2, concat=False))
)
world.add("TAGConv", _nodes(lambda gnn: gnn.TAGConv(FEATURES, CLASSES)))
world.add("FAConv", _nodes(lambda gnn: _Residual(gnn.FAConv(FEATURES))))


class _Residual(torch.nn.Module):
    """A conv that wants its first input again, with a classifier."""

    def __init__(self, conv: torch.nn.Module) -> None:
        super().__init__()
        self.conv = conv
        self.head = torch.nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.conv(x, x, edges)))


@world.case("GatedGraphConv, graph classification")
def _gated() -> Training:
    import torch_geometric.nn as gnn

    conv, pool, head = (
        gnn.GatedGraphConv(FEATURES, 3),
        gnn.AttentionalAggregation(torch.nn.Linear(FEATURES, 1)),
        None,
    )
    head = torch.nn.Linear(FEATURES, CLASSES)
    norm = gnn.GraphNorm(FEATURES)
    model = torch.nn.ModuleList([conv, pool, norm, head])
    x, edges, _ = _graph()
    batch = torch.arange(NODES) // 10
    y = torch.randint(CLASSES, (3,))
    return training(model, lambda: F.cross_entropy(head(pool(norm(conv(x, edges), batch), batch)), y))


@world.case("RGCN with bases")
def _relations() -> Training:
    import torch_geometric.nn as gnn

    conv = gnn.RGCNConv(FEATURES, CLASSES, num_relations=3, num_bases=2)
    x, edges, y = _graph()
    kinds = torch.randint(3, (edges.shape[1],))
    return training(conv, lambda: F.cross_entropy(conv(x, edges, kinds), y))


@world.case("variational graph autoencoder")
def _autoencoder() -> Training:
    import torch_geometric.nn as gnn

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.spread = gnn.GCNConv(FEATURES, 4), gnn.GCNConv(FEATURES, 4)

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.mean(x, edges), self.spread(x, edges)

    model = gnn.VGAE(Encoder())
    x, edges, _ = _graph()

    def loss() -> torch.Tensor:
        z = model.encode(x, edges)
        return model.recon_loss(z, edges) + model.kl_loss() / NODES

    return training(model, loss)


@world.case("temporal graph network (TGNMemory)")
def _temporal() -> Training:
    import torch_geometric.nn as gnn
    from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator

    memory = gnn.TGNMemory(NODES, 6, 8, 4, IdentityMessage(6, 8, 4), LastAggregator())
    memory._assoc.zero_()  # a buffer that starts as whatever the memory held
    head = torch.nn.Linear(8, 1)
    model = torch.nn.ModuleList([memory, head])
    source, target = torch.randint(NODES, (2, 20))
    messages = torch.randn(20, 6)
    clock = iter(range(100))

    def loss() -> torch.Tensor:
        now = torch.full((20,), next(clock))
        ids = torch.cat([source, target]).unique()
        z, _ = memory(ids)
        value = head(z).square().mean()
        memory.update_state(source, target, now, messages)
        memory.detach()
        return value

    return training(model, loss)


@pytest.mark.parametrize("case", world.cases, ids=str)
def test_trains_as_it_does_alone(case: Case, check: Callable[[Case], None]) -> None:
    check(case)
