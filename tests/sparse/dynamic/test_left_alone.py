"""Schedulers: what is frozen stays, what was seen stays as it was, and a step that raises has changed nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from gradmend.sparse import Pattern, SparseError
from gradmend.sparse.dynamic import SET, GradualMagnitude, RigL, scores
from gradmend.sparse.nn import SparseConv2d, SparseLinear

KINDS: dict[str, Callable[..., Any]] = {
    "SET": lambda m, o: SET(m, o, every=1, fraction=0.5),
    "RigL": lambda m, o: RigL(m, o, every=1, fraction=0.5),
    "GradualMagnitude": lambda m, o: GradualMagnitude(m, o, 0.1, end=2, every=1),
}


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(SparseLinear(8, 8, 0.4), SparseLinear(8, 8, 0.4), SparseLinear(8, 8, 0.4))


def trainable(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=0.01)


def one_step(net: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> bool:
    optimizer.zero_grad()
    net(torch.randn(4, 8)).square().sum().backward()
    optimizer.step()
    changed: bool = scheduler.step()
    return changed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_frozen_weights_are_left_alone(kind: str, frozen: int) -> None:
    net = model()
    net[frozen].requires_grad_(False)
    patterns = [layer.weight.pattern for layer in net]
    values = net[frozen].weight.values.detach().clone()
    optimizer = trainable(net)
    scheduler = KINDS[kind](net, optimizer)
    assert one_step(net, optimizer, scheduler)
    for i, layer in enumerate(net):
        assert (layer.weight.pattern == patterns[i]) == (i == frozen)
    assert torch.equal(net[frozen].weight.values, values)
    net[frozen].requires_grad_(True)  # from now on it moves with the others
    assert one_step(net, optimizer, scheduler)
    assert net[frozen].weight.pattern != patterns[frozen]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_is_frozen_whole_does_not_change(kind: str) -> None:
    net = model().requires_grad_(False)
    scheduler = KINDS[kind](net, None)
    before = copy.deepcopy(net.state_dict())
    assert not scheduler.step() and scheduler.count == 1
    torch.testing.assert_close(net.state_dict(), before)


def test_rigl_takes_frozen_layers_that_it_could_not_grow() -> None:
    net = nn.Sequential(SparseConv2d(4, 4, 1, groups=2, density=0.5), nn.Flatten(1), SparseLinear(4, 4, 0.4))
    with pytest.raises(SparseError, match="SparseConv2d without groups"):
        RigL(net, None, every=1)
    net[0].requires_grad_(False)
    scheduler = RigL(net, None, every=1, fraction=0.5)
    for grown in (True, False):
        net[0].requires_grad_(not grown)
        net(torch.randn(3, 4, 1, 1)).sum().backward()
        before = net[2].weight.pattern
        if grown:
            assert scheduler.step() and net[2].weight.pattern != before
        else:
            with pytest.raises(SparseError, match="SparseConv2d without groups"):
                scheduler.step()
            assert net[2].weight.pattern == before and scheduler.count == 1


def grown(call: Callable[[SparseLinear, Tensor, Tensor], None]) -> Pattern:
    """The pattern after two micro-batches of very different numbers."""
    torch.manual_seed(0)
    net = SparseLinear(6, 6, 0.3, bias=False)
    scheduler = RigL(net, None, every=1, fraction=0.9)
    for scale in ([9.0, 1, 1, 1, 1, 1], [0.1, 0.1, 0.1, 0.1, 0.1, 5]):
        call(net, torch.randn(4, 6) * torch.tensor(scale), torch.randn(4, 6) * torch.tensor(scale[::-1]))
    scheduler.step()
    return net.weight.pattern


def test_rigl_keeps_what_buffers_held() -> None:
    x_buffer, g_buffer = torch.empty(4, 6), torch.empty(4, 6)

    def reused(net: SparseLinear, x: Tensor, grad: Tensor) -> None:
        net(x_buffer.copy_(x)).backward(g_buffer.copy_(grad))

    assert grown(lambda net, x, grad: net(x).backward(grad)) == grown(reused)


def test_rigl_sees_what_a_layer_is_given_by_name() -> None:
    name = next(iter(SparseLinear.forward.__annotations__))
    by_place = grown(lambda net, x, grad: net(x).backward(grad))
    assert by_place == grown(lambda net, x, grad: net(**{name: x}).backward(grad))


def test_rigl_sees_all_layers_that_share_a_weight() -> None:
    torch.manual_seed(0)
    net = nn.ModuleList([SparseLinear(6, 6, 0.3, bias=False), SparseLinear(6, 6, 0.3, bias=False)])
    net[1].weight = net[0].weight
    scheduler = RigL(net, None, every=1, fraction=0.5)
    values, old = net[0].weight.values.detach().clone(), net[0].weight.pattern
    x, y = torch.randn(4, 6) * 3, torch.randn(4, 6)
    (net[0](x).sum(1) * torch.arange(4)).sum().backward()
    net[1](y).square().sum().backward()
    a = torch.arange(4.0)[:, None].expand(4, 6).t() @ x
    score = (a + (2 * net[1](y).detach()).t() @ y).abs().flatten()
    scheduler.step()
    kept = old.keys()[values.abs().topk(old.nnz - int(0.5 * old.nnz)).indices]
    score[kept] = -1
    want = set(kept.tolist()) | set(score.topk(int(0.5 * old.nnz)).indices.tolist())
    assert set(net[0].weight.pattern.keys().tolist()) == want


def test_a_step_that_raises_has_changed_nothing() -> None:
    net = model()
    scheduler = RigL(net, None, every=1, fraction=0.5)
    patterns = [layer.weight.pattern for layer in net]
    net[0](torch.randn(4, 8)).sum().backward()  # the others see nothing
    with pytest.raises(SparseError, match=r"call backward\(\)"):
        scheduler.step()
    assert scheduler.count == 0 and [layer.weight.pattern for layer in net] == patterns
    net[1](torch.randn(4, 8)).sum().backward()
    net[2](torch.randn(4, 8)).sum().backward()
    assert scheduler.step() and scheduler.count == 1
    prune.l1_unstructured(net[2].weight, "values", 0.5)
    moved = [layer.weight.pattern for layer in net]
    with pytest.raises(SparseError, match="undo that first"):
        SET(net, None, every=1).step()
    assert [layer.weight.pattern for layer in net] == moved


def test_gradual_pruning_goes_on_from_a_loaded_model() -> None:
    nets, ends = model(), []
    optimizer = torch.optim.SGD(nets.parameters(), lr=0.0)
    first = GradualMagnitude(nets, optimizer, 0.1, end=6, every=1)
    for _ in range(3):
        first.step()
    loaded = model()
    loaded.load_state_dict(copy.deepcopy(nets.state_dict()))
    second = GradualMagnitude(loaded, torch.optim.SGD(loaded.parameters(), lr=0.0), 0.1, end=6, every=1)
    second.load_state_dict(first.state_dict())
    for scheduler in (first, second):
        scheduler.step()
        ends.append([w.pattern for w in scheduler.weights])
    assert ends[0] == ends[1]


def test_state_of_another_scheduler_is_refused() -> None:
    net = model()
    draws = SET(net, None, generator=torch.Generator())
    plain, gradual = SET(net, None), GradualMagnitude(net, None, 0.1, end=5)
    cases = [
        (plain, draws.state_dict(), "pass generator="),
        (gradual, draws.state_dict(), "holds generator, which GradualMagnitude does not have"),
        (plain, gradual.state_dict(), "holds first, which SET does not have"),
        (gradual, {"count": 1, "first": [0.1]}, "of 1 sparse weights, and there are 3"),
        (plain, {"count": "many"}, "no count of its steps"),
        (plain, {}, "no count of its steps"),
    ]
    for scheduler, state, words in cases:
        scheduler.count = 7
        with pytest.raises(SparseError, match=words):
            scheduler.load_state_dict(state)
        assert scheduler.count == 7


def test_rigl_scores_complex_gradients_by_their_size() -> None:
    """Against autograd's gradient of the dense weight."""
    pattern = Pattern.random((5, 6), nnz=4, generator=torch.Generator().manual_seed(0))
    x, grad = (torch.randn(7, n, dtype=torch.complex64) for n in (6, 5))
    W = torch.zeros(5, 6, dtype=torch.complex64, requires_grad=True)
    (x @ W.t()).backward(grad)
    score = W.grad.abs().flatten()
    score[pattern.keys()] = -1
    found = scores.strongest([(x, grad)], pattern.keys(), pattern.size, 9)
    assert set(found.tolist()) == set(score.topk(9).indices.tolist())
