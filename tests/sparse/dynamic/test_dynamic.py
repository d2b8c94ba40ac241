"""Patterns that change: what stays, what goes, what comes, and that state goes along."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradmend.sparse import Pattern, PatternError, SparseError
from gradmend.sparse.dynamic import SET, GradualMagnitude, RigL, repattern
from gradmend.sparse.dynamic import scores as scoring
from gradmend.sparse.nn import SparseConv2d, SparseLinear, SparseWeight

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "rmsprop": lambda p: torch.optim.RMSprop(p),
    "fused": lambda p: torch.optim.Adam(p, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_survivors_keep_values_gradients_and_state(name: str) -> None:
    weight = SparseWeight(Pattern([[0, 0, 1, 2], [0, 2, 1, 3]], (3, 4)))
    optimizer = OPTIMIZERS[name](weight.parameters())
    weight().values().pow(2).sum().backward()
    optimizer.step()
    param = weight.values
    before = weight().to_dense().detach()
    old = {
        k: x.clone()
        for k, x in optimizer.state[param].items()
        if torch.is_tensor(x) and x.shape == param.shape
    }
    assert old or name == "none"
    grad = param.grad.clone()
    repattern(weight, Pattern([[0, 1, 1, 2, 2], [2, 0, 1, 0, 3]], (3, 4)), optimizer)
    assert weight.values is param and param.shape == (5,)
    kept = torch.tensor([1, 2, 3])  # of the old entries
    at = torch.tensor([0, 2, 4])
    torch.testing.assert_close(param.detach()[at], before[[0, 1, 2], [2, 1, 3]])
    assert param.detach()[[1, 3]].eq(0).all()
    torch.testing.assert_close(param.grad[at], grad[kept])
    for key, x in old.items():
        new = optimizer.state[param][key]
        assert torch.equal(new[at], x[kept]) and new[[1, 3]].eq(0).all()
    optimizer.step()
    optimizer.zero_grad()
    weight().values().pow(2).sum().backward()
    optimizer.step()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(SparseLinear(20, 30, 0.2), nn.ReLU(), SparseLinear(30, 5, 0.3))


def trained(
    net: nn.Module, scheduler: SET | GradualMagnitude, optimizer: torch.optim.Optimizer, steps: int
) -> float:
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(64, 20, generator=g), torch.randint(0, 5, (64,), generator=g)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
    return loss.item()


@pytest.mark.parametrize("kind", [SET, RigL])
def test_patterns_move_and_keep_their_number(kind: type) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    scheduler = kind(net, optimizer, every=10, until=60)
    before = [w.pattern for w in scheduler.weights]
    loss = trained(net, scheduler, optimizer, 100)
    for old, weight in zip(before, scheduler.weights, strict=True):
        assert weight.pattern.nnz == old.nnz and weight.pattern != old
    assert loss < 0.6
    again = kind(net, optimizer, every=10, until=60)
    again.load_state_dict(scheduler.state_dict())
    assert again.count == 100 and not again.step()


def test_rigl_grows_where_the_dense_gradient_is_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "_BLOCK", 60)  # three rows of a block
    net = SparseLinear(20, 30, 0.2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    scheduler = RigL(net, optimizer, every=1, fraction=0.25)
    old, values = net.weight.pattern, net.weight.values.detach().clone()
    x = torch.randn(16, 20)
    out = net(x)
    out.sin().sum().backward()
    dense = (out.detach().cos().t() @ x).abs()
    scheduler.step()
    count = int(0.25 * old.nnz)
    kept = set(old.keys()[values.abs().topk(old.nnz - count).indices].tolist())
    for key in kept:
        dense.view(-1)[key] = -1
    grown = set(dense.flatten().topk(count).indices.tolist())
    assert set(net.weight.pattern.keys().tolist()) == kept | grown
    with pytest.raises(SparseError, match="call backward"):
        scheduler.step()


def test_rigl_of_a_convolution_and_refusals() -> None:
    net = SparseConv2d(3, 4, 3, padding=1, density=0.3)
    scheduler = RigL(net, None, every=1, fraction=0.5)
    x = torch.randn(2, 3, 6, 6)
    values, old = net.weight.values.detach().clone(), net.weight.pattern
    out = net(x)
    out.sin().sum().backward()
    W = net.weight().to_dense().view(4, 3, 3, 3).detach().requires_grad_()
    F.conv2d(x, W, net.bias.detach(), padding=1).sin().sum().backward()
    scheduler.step()
    score = W.grad.abs().flatten()
    kept = old.keys()[values.abs().topk(old.nnz - int(0.5 * old.nnz)).indices]
    score[kept] = -1
    grown = score.topk(int(0.5 * old.nnz)).indices
    assert set(net.weight.pattern.keys().tolist()) == set(kept.tolist()) | set(grown.tolist())
    scheduler.remove()
    with pytest.raises(SparseError, match="RigL takes"):
        RigL(nn.ModuleList([SparseWeight(Pattern.random((3, 3), nnz=2))]), None)
    with pytest.raises(SparseError, match="no sparse weights"):
        SET(nn.Linear(2, 2), None)
    with pytest.raises(PatternError, match="the new pattern is"):
        repattern(net.weight, Pattern.random((3, 3), nnz=2))


def test_gradual_magnitude_follows_its_cubic() -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    scheduler = GradualMagnitude(net, optimizer, 0.05, begin=10, end=60, every=10)
    first = [w.pattern.density for w in scheduler.weights]
    trained(net, scheduler, optimizer, 30)
    for weight, d in zip(scheduler.weights, first, strict=True):
        want = 0.05 + (d - 0.05) * (1 - 20 / 50) ** 3
        assert weight.pattern.nnz == round(want * weight.pattern.numel)
    trained(net, scheduler, optimizer, 40)
    assert [w.pattern.nnz for w in scheduler.weights] == [
        round(0.05 * w.pattern.numel) for w in scheduler.weights
    ]
    assert all(
        net[0].weight.values.shape == s.shape
        for s in optimizer.state[net[0].weight.values].values()
        if s.dim()
    )


def test_the_largest_are_found_whatever_a_sample_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "_SAMPLE", 8)
    for score in (
        torch.randn(1000),
        torch.zeros(1000),
        torch.arange(1000.0),
        torch.full((1000,), -torch.inf),
    ):
        for count in (0, 1, 50, 125, 900):
            got = scoring.top(score, count)
            assert got.unique().numel() == count
            assert torch.equal(score[got].sort().values, score.topk(count).values.sort().values)


def test_the_dense_gradient_is_never_built() -> None:
    """A weight of 200,000 x 200,000 would take 160 GB."""
    taken = Pattern.random((200_000, 200), nnz=1000)
    pairs = [(torch.randn(4, 200), torch.zeros(4, 200_000).index_fill_(1, torch.tensor([7, 150_000]), 1.0))]
    found = scoring.strongest(pairs, taken.keys(), taken.size, 50)
    assert set((found // 200).tolist()) <= {7, 150_000}


def test_lbfgs_can_not_follow() -> None:
    model = SparseLinear(8, 8, 0.5)
    optimizer = torch.optim.LBFGS(model.parameters())
    before = model.weight.pattern
    with pytest.raises(SparseError, match="LBFGS keeps one history"):
        GradualMagnitude(model, optimizer, 0.1, end=10, every=1)
    for given in (optimizer, [optimizer]):
        with pytest.raises(SparseError, match="LBFGS keeps one history"):
            repattern(model.weight, Pattern.random((8, 8), density=0.2), given)
    assert model.weight.pattern is before and model.weight.values.shape == (before.nnz,)
