"""Whole programs, written from the docs alone as a new user does, against dense ones that start from the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from gradmend.sparse import Pattern, SparseTensor, patch, sddmm
from gradmend.sparse.data import SparseRows
from gradmend.sparse.errors import PatternError
from gradmend.sparse.nn import (
    GraphConv,
    MapBatchNorm,
    MapSequential,
    SparseEmbeddingBag,
    SparseFeatureMap,
    StridedConv3d,
    SubmanifoldConv3d,
    TransposedConv3d,
)
from gradmend.sparse.optim import RowAdam


class Machine(nn.Module):
    """A factorization machine over one-hot rows; the second term reads the table twice, once densely."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.linear, self.table = (SparseEmbeddingBag(features, d, mode="sum") for d in (1, width))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, S: SparseTensor) -> Tensor:
        squares: Tensor = self.table(S).square() - (S * S) @ self.table.weight.square()
        return self.bias + self.linear(S).squeeze(1) + squares.sum(1) / 2


def test_a_factorization_machine_trains_as_a_dense_one() -> None:
    sp = pytest.importorskip("scipy.sparse")
    torch.manual_seed(0)
    users, items, n = 40, 60, 600
    u, i = torch.randint(users, (n,)), torch.randint(items, (n,))
    y = (torch.randn(users, 3)[u] * torch.randn(items, 3)[i]).sum(1)
    X = sp.csr_matrix(
        (torch.ones(2 * n).numpy(), torch.stack([u, i + users], 1).flatten().numpy(), range(0, 2 * n + 1, 2)),
        shape=(n, users + items),
    )
    model = Machine(users + items, 4)
    with torch.no_grad():
        model.table.weight.mul_(0.1)
    w, v, b = (
        p.detach().clone().requires_grad_() for p in (model.linear.weight, model.table.weight, model.bias)
    )

    def dense(X: Tensor) -> Tensor:
        return b + (X @ w).squeeze(1) + ((X @ v).square() - X.square() @ v.square()).sum(1) / 2

    ours, theirs = RowAdam(model.parameters(), lr=0.01), torch.optim.Adam([w, v, b], lr=0.01)
    losses = []
    for S, t in (batch for _ in range(6) for batch in DataLoader(SparseRows(X, y), batch_size=n)):
        for optimizer, loss in (
            (ours, (model(S) - t).square().mean()),
            (theirs, (dense(S.to_dense()) - t).square().mean()),
        ):
            optimizer.zero_grad()
            loss.backward()
            losses.append(loss.item())
        torch.testing.assert_close(model.table.weight.grad, v.grad)
        torch.testing.assert_close(model.linear.weight.grad.to_dense(), w.grad)
        ours.step()
        theirs.step()
    assert losses[-1] < losses[0]
    torch.testing.assert_close(model.table.weight, v, rtol=1e-3, atol=1e-4)


def test_link_prediction_scores_edges_in_the_order_given() -> None:
    """A graph encoder and a dot-product decoder by sddmm, against the same by gathering."""
    g = torch.Generator().manual_seed(0)
    n = 60
    group = torch.randint(3, (n,), generator=g)
    near = torch.rand(n, n, generator=g) < torch.where(group[:, None] == group, 0.4, 0.02)
    edges = near.nonzero().t()[:, torch.randperm(int(near.sum()), generator=g)]
    others = torch.randint(n, (2, edges.shape[1]), generator=g).unique(dim=1)
    others = others[:, torch.randperm(others.shape[1], generator=g)]
    A = SparseTensor.from_edge_index(edges, num_nodes=n)
    A = A / A.sum(1).clamp(min=1)[:, None]
    torch.manual_seed(1)
    x, first, second = torch.randn(n, 8), GraphConv(8, 16), GraphConv(16, 8)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], 0.02)

    def loss_of(scores: list[Tensor]) -> Tensor:
        # A weight for each edge in its own order: scores in another would be another loss.
        parts = [
            F.binary_cross_entropy_with_logits(s, torch.full_like(s, kind), torch.linspace(0.5, 1.5, len(s)))
            for kind, s in zip((1.0, 0.0), scores, strict=True)
        ]
        return torch.stack(parts).sum()

    losses = []
    for _ in range(30):
        h = second(A, F.relu(first(A, x)))
        loss = loss_of([sddmm(Pattern(e, (n, n)), h, h.t()).values() for e in (edges, others)])
        want = loss_of([(h[e[0]] * h[e[1]]).sum(1) for e in (edges, others)])
        torch.testing.assert_close(loss, want)
        for got, dense in zip(
            torch.autograd.grad(loss, first.parameters(), retain_graph=True),
            torch.autograd.grad(want, first.parameters(), retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(got, dense, rtol=1e-4, atol=1e-6)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1


class UNet(nn.Module):
    def __init__(self, f64: Any) -> None:
        super().__init__()
        self.down = MapSequential(SubmanifoldConv3d(4, 8, **f64), MapBatchNorm(8, **f64), nn.ReLU())
        self.deep = MapSequential(
            StridedConv3d(8, 12, **f64), nn.ReLU(), SubmanifoldConv3d(12, 12, **f64), nn.ReLU()
        )
        self.up = TransposedConv3d(12, 8, **f64)
        self.head = MapSequential(
            SubmanifoldConv3d(16, 8, **f64), nn.ReLU(), SubmanifoldConv3d(8, 5, 1, **f64)
        )

    def forward(self, x: SparseFeatureMap) -> SparseFeatureMap:
        a = self.down(x)
        made: SparseFeatureMap = self.head(a.cat(self.up(self.deep(a), like=a)))
        return made

    def dense(self, X: Tensor, mask: Tensor) -> Tensor:
        """The same weights by torch's dense layers, zero where nothing is."""

        def conv(layer: Any, x: Tensor, padding: int, where: Tensor, **more: Any) -> Tensor:
            return F.conv3d(x, layer.weight, layer.bias, padding=padding, **more) * where

        first, norm, _ = self.down
        a = conv(first, X, 1, mask)
        count, over = mask.sum(), (0, 2, 3, 4)
        mean = (a.sum(over) / count)[:, None, None, None]
        var = (((a - mean) * mask).square().sum(over) / count)[:, None, None, None]
        scale, shift = norm.weight[:, None, None, None], norm.bias[:, None, None, None]
        a = F.relu(((a - mean) / (var + norm.eps).sqrt() * scale + shift) * mask)
        coarse = (F.max_pool3d(mask, 2) > 0).to(X.dtype)
        b = F.relu(conv(self.deep[0], a, 0, coarse, stride=2))
        b = F.relu(conv(self.deep[2], b, 1, coarse))
        c = F.conv_transpose3d(b, self.up.weight, self.up.bias, stride=2) * mask
        h = F.relu(conv(self.head[0], torch.cat([a, c], 1), 1, mask))
        return conv(self.head[2], h, 0, mask)


def test_a_sparse_u_net_equals_a_dense_one() -> None:
    torch.manual_seed(0)
    side, f64 = 8, {"dtype": torch.float64}
    points = torch.cat([torch.randint(2, (150, 1)), torch.randint(side, (150, 3))], 1).unique(dim=0)
    x = SparseFeatureMap.from_points(points, torch.randn(len(points), 4, **f64), space=(side,) * 3)
    net = UNet(f64)
    at = x.pattern.indices()
    mask = torch.zeros(2, 1, side, side, side, **f64)
    mask[at[0], 0, at[1], at[2], at[3]] = 1
    want = net.dense(x.to_dense(), mask)[at[0], :, at[1], at[2], at[3]]
    got = net(x).features
    torch.testing.assert_close(got, want)
    weight = torch.randn_like(want)
    parameters = list(net.parameters())
    for g, h in zip(
        torch.autograd.grad((got * weight).sum(), parameters),
        torch.autograd.grad((want * weight).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(g, h, rtol=1e-8, atol=1e-10)


def test_an_index_outside_of_a_torch_tensor_is_refused_under_patch() -> None:
    """torch itself reads past the end there."""
    w = nn.Parameter(torch.ones(3))
    with patch():
        weight = torch.sparse_coo_tensor([[0, 1, 0], [0, 1, 2]], w, (2, 3))
        outside = torch.sparse_coo_tensor([[0, 1], [0, 2]], torch.ones(2), (3, 1), check_invariants=False)
        with pytest.raises(PatternError, match="entry 1 has the index 2 in dimension 1"):
            torch.sparse.mm(weight, outside)
