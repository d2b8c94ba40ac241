"""The rows of benchmarks/sparse_train.py: each is a training step, and the peers that can make it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from sparse_train_targets import BOUND, DENSE, SPARSELAB, SPARSEPROP, mover
from torch import Tensor, nn

from gradmend.sparse import Pattern, SparseTensor
from gradmend.sparse import nn as snn
from gradmend.sparse.dynamic import RigL
from gradmend.sparse.optim import RowAdagrad, RowAdam, RowSGD

OURS = "gradmend"
Step = Callable[[], Any]
Peers = dict[str, Callable[[], Step]]
ROWS: dict[str, Callable[[bool], Peers]] = {}


def row(f: Callable[[bool], Peers]) -> Callable[[bool], Peers]:
    ROWS[f.__name__] = f
    return f


def _tables(
    small: bool,
    make: Callable[[Any], Any],
    theirs: dict[str, Callable[[Any], Any]],
    fbgemm: str,
    rate: float = 0.01,
) -> Peers:
    n, d, looked = (100_000, 16, 20_000) if small else (10_000_000, 16, 213_000)
    g = torch.Generator().manual_seed(0)
    batches = [(torch.rand(looked, generator=g) ** 3 * n).long() for _ in range(4)]
    weight = torch.randn(n, d, generator=g) * 0.01

    def step_of(table: nn.Module, optimizer: Any) -> Step:
        at = [0]

        def step() -> None:
            at[0] += 1
            if optimizer is not None:
                optimizer.zero_grad()
            table(batches[at[0] % 4]).square().sum().backward()
            if optimizer is not None:
                optimizer.step()

        return step

    def ours() -> Step:
        table = snn.SparseEmbedding(n, d, _weight=weight.clone())
        return step_of(table, make(table.parameters()))

    def other(maker: Callable[[Any], Any]) -> Callable[[], Step]:
        def start() -> Step:
            table = nn.Embedding(n, d, sparse="dense" not in maker.__doc__, _weight=weight.clone())  # type: ignore[operator]
            return step_of(table, maker(table.parameters()))

        return start

    def fused() -> Step:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        table = SplitTableBatchedEmbeddingBagsCodegen(
            [(n, d, EmbeddingLocation.HOST, ComputeDevice.CPU)],
            optimizer=getattr(EmbOptimType, fbgemm),
            learning_rate=rate,
        )
        offsets = torch.arange(looked + 1)
        return step_of(_Fused(table, offsets), None)

    peers = {OURS: ours, **{name: other(maker) for name, maker in theirs.items()}, "fbgemm fused": fused}
    if fbgemm == "ADAM":  # a parameter and two moments
        peers[BOUND] = lambda: mover(batches, [weight, *(torch.zeros(n, d) for _ in range(2))])
    return peers


class _Fused(nn.Module):
    def __init__(self, table: Any, offsets: Tensor) -> None:
        super().__init__()
        self.table, self.offsets = table, offsets

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids, self.offsets)


def _named(kind: str, f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    f.__doc__ = kind
    return f


@row
def table_sgd(small: bool) -> Peers:
    """An embedding of 10M x 16, 213k skewed look-ups, SGD: forward, backward and step."""
    rate = 1e-4  # row 0 is looked up a thousand times a step: 0.01 runs off to infinity
    theirs = {"torch SGD, sparse": _named("sparse", lambda p: torch.optim.SGD(p, lr=rate))}
    return _tables(small, lambda p: RowSGD(p, lr=rate), theirs, "EXACT_SGD", rate)


@row
def table_adagrad(small: bool) -> Peers:
    """The same with Adagrad."""
    theirs = {"torch Adagrad, sparse": _named("sparse", lambda p: torch.optim.Adagrad(p, lr=0.01))}
    return _tables(small, lambda p: RowAdagrad(p, lr=0.01), theirs, "EXACT_ADAGRAD")


@row
def table_adam(small: bool) -> Peers:
    """The same with Adam."""
    theirs = {
        "torch SparseAdam": _named("sparse", lambda p: torch.optim.SparseAdam(p, lr=0.01)),
        "torch Adam, fused, dense gradient": _named(
            "dense", lambda p: torch.optim.Adam(p, lr=0.01, fused=True)
        ),
    }
    return _tables(small, lambda p: RowAdam(p, lr=0.01), theirs, "ADAM")


@row
def table_adam_step(small: bool) -> Peers:
    """The Adam step alone, beside torch reading and writing the same rows and computing nothing."""
    n, d, looked = (100_000, 16, 20_000) if small else (10_000_000, 16, 213_000)
    g = torch.Generator().manual_seed(0)
    table = nn.Embedding(n, d, sparse=True, _weight=torch.randn(n, d, generator=g))
    optimizer = RowAdam(table.parameters(), lr=0.01)
    ids = (torch.rand(looked, generator=g) ** 3 * n).long()
    table(ids).sum().backward()
    rows = ids.unique()
    three = [torch.zeros(n, d) for _ in range(3)]
    held = torch.randn(rows.shape[0], d)

    def move() -> None:
        for t in three:
            t.index_select(0, rows)
            t.index_copy_(0, rows, held)

    return {OURS: lambda: optimizer.step, "index_select and index_copy_ of 3 tables": lambda: move}


def _bag(small: bool, part: str) -> Peers:
    bags, n, words, h = (256, 20_000, 20, 16) if small else (4096, 1_000_000, 100, 64)
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(n, h, generator=g) * 0.01
    batches = []
    for _ in range(3):
        col = (torch.rand(bags * words, generator=g) ** 2 * n).long()
        line = torch.arange(bags).repeat_interleave(words)
        pattern = Pattern(torch.stack([line, col]), (bags, n)).canonical()
        batches.append(SparseTensor(pattern, torch.rand(pattern.nnz, generator=g)))

    def stepping(table: nn.Module, optimizer: Any, forward: Callable[[SparseTensor], Tensor]) -> Step:
        at = [0]

        def whole() -> None:
            at[0] += 1
            optimizer.zero_grad()
            forward(batches[at[0] % 3]).square().sum().backward()
            optimizer.step()

        whole()
        return whole if part == "whole" else optimizer.step

    def ours() -> Step:
        table = snn.SparseEmbeddingBag(n, h, mode="sum", _weight=weight.clone())
        return stepping(table, RowAdam(table.parameters()), table)

    def torchs(sparse: bool, make: Callable[[Any], Any]) -> Callable[[], Step]:
        def start() -> Step:
            table = nn.EmbeddingBag(
                n, h, mode="sum", sparse=sparse, include_last_offset=True, _weight=weight.clone()
            )
            parts = {id(S): (S.pattern.col, S.pattern.ptr, S.values()) for S in batches}
            return stepping(table, make(table.parameters()), lambda S: table(*parts[id(S)]))

        return start

    return {
        OURS: ours,
        "embedding_bag + SparseAdam": torchs(True, torch.optim.SparseAdam),
        "embedding_bag + Adam, fused": torchs(False, lambda p: torch.optim.Adam(p, fused=True)),
    }


@row
def bag(small: bool) -> Peers:
    """Bag of words, 4096 x 1M, 100 words a row, 64 features, Adam: forward, backward and step."""
    return _bag(small, "whole")


@row
def bag_step(small: bool) -> Peers:
    """The same, the step alone."""
    return _bag(small, "step")


@row
def rigl(small: bool) -> Peers:
    """An MLP 4096-4096-4096 at 5%, batch 128, Adam, RigL every 100 steps; a step without change of pattern."""
    n = 512 if small else 4096
    torch.manual_seed(0)
    x = torch.randn(128, n)

    def ours() -> Step:
        net = nn.Sequential(snn.SparseLinear(n, n, 0.05), nn.ReLU(), snn.SparseLinear(n, n, 0.05))
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        scheduler = RigL(net, optimizer, every=10**9)
        return lambda: _train(net, optimizer, x, scheduler)

    def masked() -> Step:
        net = nn.Sequential(nn.Linear(n, n), nn.ReLU(), nn.Linear(n, n))
        masks = [(torch.rand(n, n) < 0.05).float() for _ in range(2)]
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)

        def step() -> None:
            with torch.no_grad():
                for layer, mask in zip((net[0], net[2]), masks, strict=True):
                    layer.weight.mul_(mask)
            _train(net, optimizer, x, None)

        return step

    return {OURS: ours, "dense with masks, fused Adam": masked}


@row
def rigl_change(small: bool) -> Peers:
    """The same MLP, a step in which patterns change."""
    n = 512 if small else 4096
    torch.manual_seed(0)
    x = torch.randn(128, n)

    def ours() -> Step:
        net = nn.Sequential(snn.SparseLinear(n, n, 0.05), nn.ReLU(), snn.SparseLinear(n, n, 0.05))
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        scheduler = RigL(net, optimizer, every=1)
        return lambda: _train(net, optimizer, x, scheduler)

    def dense() -> Step:
        net = nn.Sequential(nn.Linear(n, n), nn.ReLU(), nn.Linear(n, n))
        masks = [torch.rand(n, n) < 0.05 for _ in range(2)]
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)

        def step() -> None:
            _train(net, optimizer, x, None)
            with torch.no_grad():
                for i, layer in enumerate((net[0], net[2])):
                    mask, count = masks[i], int(0.3 * masks[i].sum())
                    size = layer.weight.abs().masked_fill_(~mask, torch.inf).flatten()
                    mask.view(-1)[size.topk(count, largest=False).indices] = False
                    score = layer.weight.grad.abs().masked_fill_(mask, -1).flatten()
                    mask.view(-1)[score.topk(count).indices] = True
                    layer.weight.mul_(mask)

        return step

    return {OURS: ours, "dense with masks, fused Adam": dense}


def _train(net: nn.Module, optimizer: Any, x: Tensor, scheduler: Any) -> None:
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
    if scheduler is not None:
        scheduler.step()


@row
def gat(small: bool) -> Peers:
    """Graph attention, 20k nodes, 300k edges, 64 features, 4 heads of 16, Adam: a training step."""
    n, m = (1000, 10_000) if small else (20_000, 300_000)
    g = torch.Generator().manual_seed(0)
    index = torch.stack(
        [torch.randint(0, n, (m,), generator=g), (torch.rand(m, generator=g) ** 2 * n).long()]
    )
    pattern = Pattern(index, (n, n)).canonical()
    x = torch.randn(n, 64, generator=g)

    def step_of(layer: nn.Module, forward: Callable[[], Tensor]) -> Step:
        optimizer = torch.optim.Adam(layer.parameters())

        def step() -> None:
            optimizer.zero_grad()
            forward().square().mean().backward()
            optimizer.step()

        return step

    def ours() -> Step:
        layer = snn.GraphAttention(64, 16, heads=4)
        return step_of(layer, lambda: layer(pattern, x))

    def pyg() -> Step:
        from torch_geometric.nn import GATConv

        layer = GATConv(64, 16, heads=4, add_self_loops=False)
        edges = torch.stack([pattern.col, pattern.row])
        return step_of(layer, lambda: layer(x, edges))

    def composed() -> Step:
        layer = snn.GraphAttention(64, 16, heads=4)
        i, j = pattern.row, pattern.col

        def forward() -> Tensor:
            h = layer.lin(x).view(-1, 4, 16)
            e = F.leaky_relu((h * layer.target).sum(2)[i] + (h * layer.source).sum(2)[j], 0.2)
            at = i[:, None].expand(-1, 4)
            top = torch.full((n, 4), -torch.inf).scatter_reduce(0, at, e.detach(), "amax")
            w = (e - top[i]).exp()
            w = w / torch.zeros(n, 4).index_add(0, i, w)[i]
            return torch.zeros(n, 4, 16).index_add(0, i, w[:, :, None] * h[j]).flatten(1) + layer.bias

        return step_of(layer, forward)

    return {OURS: ours, "torch_geometric GATConv": pyg, "torch, gather and index_add": composed}


def _points(small: bool, side: int, n: int) -> tuple[snn.SparseFeatureMap, int]:
    side, n = (16, 400) if small else (side, n)
    g = torch.Generator().manual_seed(0)
    keys = torch.randperm(side**3, generator=g)[:n]
    index = torch.stack([torch.zeros_like(keys), keys // side**2, keys // side % side, keys % side], 1)
    features = torch.randn(n, 32, generator=g)
    return snn.SparseFeatureMap.from_points(index, features, (side,) * 3, 1), side


def _conv(small: bool, side: int, n: int) -> Peers:
    x, side = _points(small, side, n)
    torch.manual_seed(0)
    layer = snn.SubmanifoldConv3d(32, 32)

    def back(out: Tensor) -> None:
        out.sum().backward()

    def ours() -> Step:
        one = copy.deepcopy(layer)
        leaf = x.features.clone().requires_grad_()
        held = x.with_features(leaf)
        return lambda: back(one(held).features)

    def gathered() -> Step:
        from gradmend.sparse.nn.maps import kernel_map

        km = kernel_map.submanifold(x.pattern, layer.window)
        at = km.ptr.tolist()
        W = layer.weight.detach().flatten(2).permute(2, 1, 0).contiguous().requires_grad_()
        leaf = x.features.clone().requires_grad_()

        def step() -> None:
            out = torch.zeros(x.pattern.nnz, 32)
            for k, (a, b) in enumerate(pairwise(at)):
                out = out.index_add_(0, km.target[a:b], leaf[km.source[a:b]] @ W[k])
            back(out)

        return step

    def dense() -> Step:
        one = nn.Conv3d(32, 32, 3, padding=1)
        image = x.to_dense().requires_grad_()
        return lambda: back(one(image))

    def products() -> Step:
        from gradmend.sparse.nn.maps import kernel_map

        km = kernel_map.submanifold(x.pattern, layer.window)
        at, m = km.ptr.tolist(), x.pattern.nnz
        parts = []
        for a, b in pairwise(at):
            pattern = Pattern(torch.stack([km.target[a:b], km.source[a:b]]), (m, m))
            parts.append(SparseTensor(pattern, torch.ones(b - a)))
        W = layer.weight.detach().flatten(2).permute(2, 1, 0).contiguous().requires_grad_()
        leaf = x.features.clone().requires_grad_()
        return lambda: back(sum(S @ (leaf @ W[k]) for k, S in enumerate(parts)))

    return {
        OURS: ours,
        "gather, mm and index_add": gathered,
        "27 sparse products": products,
        "dense conv3d": dense,
    }


@row
def conv3d(small: bool) -> Peers:
    """Submanifold 3 x 3 x 3 of 50,000 points in 64^3 (19%), 32 channels: forward and backward, map kept."""
    return _conv(small, 64, 50_000)


@row
def conv3d_1(small: bool) -> Peers:
    """The same at 1% of 96^3 (8,847 points)."""
    return _conv(small, 96, 8_847)


@row
def conv3d_map(small: bool) -> Peers:
    """What finding the neighbours of 50,000 points costs, once for each cloud."""
    x, side = _points(small, 64, 50_000)
    layer = snn.SubmanifoldConv3d(32, 32)

    def ours() -> Step:
        from gradmend.sparse.nn.maps import kernel_map

        return lambda: kernel_map.between(x.pattern, x.pattern, layer.window)

    def searched() -> Step:
        keys = x.pattern.keys()
        offsets = layer.window.offsets() - 1
        place = x.points()[:, 1:]

        def step() -> None:
            for offset in offsets:
                at = place + offset
                good = ((at >= 0) & (at < side)).all(1)
                key = (at[:, 0] * side + at[:, 1]) * side + at[:, 2]
                slot = torch.searchsorted(keys, key).clamp_(max=keys.shape[0] - 1)
                (good & (keys[slot] == key)).nonzero()

        return step

    return {OURS: ours, "torch.searchsorted": searched}


def _linear(small: bool, density: float) -> Peers:
    n = 256 if small else 4096
    torch.manual_seed(0)
    x = torch.randn(128, n, requires_grad=True)
    grad = torch.randn(128, n)  # no .sum(): its gradient is one row, expanded, which our kernels read once
    layer = snn.SparseLinear(n, n, density)

    def ours() -> Step:
        return lambda: layer(x).backward(grad)

    def dense() -> Step:
        one = nn.Linear(n, n)
        return lambda: one(x).backward(grad)

    def leaf() -> Step:
        W = layer.weight().to_sparse_csr().detach().requires_grad_()
        return lambda: torch.sparse.mm(W, x.t()).backward(grad.t())

    def prop() -> Step:
        from sparseprop.modules import SparseLinear

        one = SparseLinear(layer.weight().to_dense().detach())
        return lambda: one(x).backward(grad)

    def lab() -> Step:
        from sparselab import SparseLinear

        one = SparseLinear(n, n, bias=False, sparsity=1 - density)
        return lambda: one(x).backward(grad)

    return {OURS: ours, DENSE: dense, "torch CSR leaf": leaf, SPARSEPROP: prop, SPARSELAB: lab}


@row
def linear10(small: bool) -> Peers:
    """A linear layer 4096 x 4096 at 10%, batch 128: forward and backward."""
    return _linear(small, 0.10)


@row
def linear5(small: bool) -> Peers:
    """The same at 5%."""
    return _linear(small, 0.05)


@row
def linear1(small: bool) -> Peers:
    """The same at 1%."""
    return _linear(small, 0.01)
