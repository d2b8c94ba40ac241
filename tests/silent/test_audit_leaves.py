"""A program comes out of an audit as it would without: where nothing can be compared, and where a second backward writes."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, vmap
from torch.utils.checkpoint import checkpoint

import gradmend
from gradmend.api.second_pass import undone
from gradmend.capture.ledger import scopes
from gradmend.capture.taps.hub import LEDGER


def _hessian() -> torch.Tensor:
    w = torch.randn(5, 3, requires_grad=True)
    return hessian(lambda x: (w @ x).tanh().sum())(torch.randn(3))


def _jacrev() -> torch.Tensor:
    return jacrev(lambda x: x.tanh().outer(x))(torch.randn(3))


def _grad() -> torch.Tensor:
    return grad(lambda x: x.tanh().square().sum())(torch.randn(3))


def _clipped_by_sample() -> torch.Tensor:
    w = torch.randn(3, requires_grad=True)
    for _ in range(2):
        each = vmap(grad(lambda w, x: (w * x).square().sum()), (None, 0))(w, torch.randn(4, 3))
        norms = vmap(lambda g: g.square().sum().sqrt())(each)
        with torch.no_grad():
            w.sub_((each / norms.view(-1, 1).clamp_(min=1)).mean(0), alpha=0.1)
    return w


def _module() -> torch.Tensor:
    net = nn.Linear(3, 1)
    named = dict(net.named_parameters())

    def loss(named: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(net, named, (x,)).square().sum()

    return vmap(grad(loss), (None, 0))(named, torch.randn(4, 3))["weight"]


def _vectorized() -> torch.Tensor:
    x = torch.randn(3, requires_grad=True)
    (every,) = torch.autograd.grad(x.tanh(), x, torch.eye(3), is_grads_batched=True)
    return every


@pytest.mark.parametrize(
    "run", [_hessian, _jacrev, _grad, _clipped_by_sample, _module, _vectorized], ids=lambda f: f.__name__[1:]
)
def test_a_backward_inside_a_transform_is_left_alone(run: Callable[[], torch.Tensor]) -> None:
    torch.manual_seed(0)
    plain = run()
    torch.manual_seed(0)
    with gradmend.audit() as verdict:
        assert torch.equal(run(), plain)
    assert verdict.unable and len(verdict.unable) == verdict.calls
    assert not verdict.is_wrong
    assert "can't tell: a backward runs inside a transform" in str(verdict)


def test_the_others_are_compared() -> None:
    with gradmend.audit() as verdict:
        _grad()
        w = torch.ones(3, requires_grad=True)
        (w * w).sum().backward()
    words = str(verdict)
    assert "the gradient is right in 1 of 2 backward calls, for 1 tensor" in words
    assert "can't tell of 1 of 2 backward calls: a backward runs inside" in words


def test_a_graph_that_is_written_down_is_no_backward_of_the_program() -> None:
    def run() -> list[torch.Tensor | None]:
        torch.manual_seed(0)
        torch._dynamo.reset()
        lin, out = nn.Linear(4, 4), nn.Linear(4, 1)
        f = torch.compile(lambda x: torch.sigmoid(lin(x)), backend="aot_eager", fullgraph=True)
        out(f(torch.randn(5, 4))).square().mean().backward()
        return [p.grad for p in (*lin.parameters(), *out.parameters())]

    plain = run()
    with gradmend.audit() as verdict:
        got = run()
    assert all(torch.equal(a, b) for a, b in zip(got, plain, strict=True))  # type: ignore[arg-type]
    assert (verdict.calls, len(verdict.leaves), verdict.unable, verdict.is_wrong) == (1, 4, [], False)


def test_an_error_of_the_second_run_is_none_of_the_program() -> None:
    w = torch.ones(3, requires_grad=True)
    y = w * 2
    times = []

    def once(_: torch.Tensor) -> None:
        times.append(1)
        if len(times) > 1:
            raise ValueError("a hook that may run once")

    y.register_hook(once)
    with gradmend.audit() as verdict:
        y.sum().backward()
    assert verdict.unable[0][1] == "a hook that may run once"
    assert torch.equal(w.grad, torch.full((3,), 2.0))  # type: ignore[arg-type]


class _Counting(nn.Module):
    """All it changes are buffers, by an op each that a recomputation runs again."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.seen[:1].add_(1)
            self.seen[1:].add_(len(x))
            self.mean.lerp_(x.mean(0), 0.1)
        return torch.relu_(self.norm(x))


def _trained(audited: bool, reentrant: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), _Counting(), nn.Linear(6, 1))
    opt = torch.optim.SGD(net.parameters(), 0.1)
    with gradmend.audit() if audited else contextlib.nullcontext() as verdict:
        for _ in range(3):
            x = torch.randn(8, 4, requires_grad=True)
            loss = checkpoint(net, x, use_reentrant=reentrant).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    assert verdict is None or not verdict.is_wrong
    assert verdict is None or reentrant or (verdict.leaves and not verdict.unable)
    return net.state_dict()


@pytest.mark.parametrize("reentrant", [False, True])
def test_buffers_of_a_recomputation_are_put_back(reentrant: bool) -> None:
    plain = _trained(False, reentrant)
    got = _trained(True, reentrant)
    assert [name for name in plain if not torch.equal(plain[name], got[name])] == []
    assert plain["1.norm.num_batches_tracked"] == 6


def _drawn(audited: bool) -> tuple[object, ...]:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    w = torch.ones(3, requires_grad=True)
    with gradmend.audit() if audited else contextlib.nullcontext() as verdict:
        y = w * 2
        y.register_hook(lambda g: g * (torch.rand(3) + random.random() + np.random.rand()))
        y.sum().backward()
    assert verdict is None or not (verdict.is_wrong or verdict.unable)
    assert w.grad is not None
    return w.grad.tolist(), torch.rand(()).item(), random.random(), np.random.rand()


def test_random_numbers_of_a_second_run_are_those_of_the_first() -> None:
    assert _drawn(True) == _drawn(False)


def test_a_buffer_that_a_hook_counts_in_keeps_its_version() -> None:
    count = torch.zeros(3)
    w = torch.ones(3, requires_grad=True)

    def scaled(g: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return g * count

    with gradmend.audit() as verdict:
        y = w * w
        y.register_hook(scaled)
        (first,) = torch.autograd.grad(y.sum(), w, create_graph=True)
        assert torch.equal(count, torch.ones(3))
        assert count._version == 1
        first.sum().backward()  # the graph of the first backward kept `count`
    assert not any("fails by itself" in why for _, why in verdict.unable)


def test_what_another_thread_writes_meanwhile_stays() -> None:
    asked, done = threading.Semaphore(0), threading.Semaphore(0)
    seen, written = torch.zeros(1), []

    def work() -> None:
        while asked.acquire(timeout=5) and len(written) < 2:
            seen.add_(1)
            written.append(1)
            done.release()

    def ask(grad: torch.Tensor) -> None:
        asked.release()
        assert done.acquire(timeout=5)

    thread = threading.Thread(target=work)
    thread.start()
    with gradmend.audit():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.register_hook(ask)
        y.sum().backward()
    asked.release()
    thread.join()
    assert seen.item() == len(written) == 2


def test_second_passes_of_two_threads_may_end_in_any_order() -> None:
    with gradmend.watch():
        scope = scopes.current()
        assert scope is not None
        first, second = undone(scope, lambda: None), undone(scope, lambda: None)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert len(LEDGER.about_to) == 1
        second.__exit__(None, None, None)
    assert not LEDGER.about_to
