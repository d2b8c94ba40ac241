"""heal(retain=True): a second backward through what the first would have freed, with the gradient of the forward that ran."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.func import functional_call

import gradmend


def cell() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.RNNCell(3, 4, dtype=torch.float64)


INPUT = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3)


def carried_over(steps: int) -> list[torch.Tensor]:
    """The state is carried on without detach(), and the parameters are stepped in between."""
    model = cell()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    h, grads = torch.zeros(2, 4, dtype=torch.float64), []
    for _ in range(steps):
        h = model(INPUT, h)
        optimizer.zero_grad()
        h.pow(2).sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]).clone())
        optimizer.step()
    return grads


def in_the_open(steps: int) -> list[torch.Tensor]:
    """The same in plain PyTorch: each step makes new parameters, and each gradient is that of all that came before."""
    model = cell()
    names = [name for name, _ in model.named_parameters()]
    values = [p.detach().clone() for p in model.parameters()]
    h, grads, used = torch.zeros(2, 4, dtype=torch.float64), [], []
    for _ in range(steps):
        leaves = [v.clone().requires_grad_() for v in values]
        used.append(leaves)
        h = functional_call(model, dict(zip(names, leaves, strict=True)), (INPUT, h))
        flat = torch.autograd.grad(h.pow(2).sum(), [leaf for one in used for leaf in one], retain_graph=True)
        total = [sum(flat[i :: len(names)]) for i in range(len(names))]
        grads.append(torch.cat([g.flatten() for g in total]))
        values = [v - 0.1 * g for v, g in zip(values, total, strict=True)]
    return grads


def test_state_that_is_carried_over():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with gradmend.heal(retain=True) as session:
            healed = carried_over(6)
    for got, right in zip(healed, in_the_open(6), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-12, atol=1e-14)
    told = [c for c in session if c.rule == "GM131"]
    assert len(told) == 1 and "`h`" in told[0].message
    assert session.outcome == "healed"


def test_without_it_a_second_backward_stops():
    with pytest.raises(RuntimeError, match="second time"), gradmend.heal():
        carried_over(2)


def test_the_same_loss_twice():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with gradmend.heal(retain=True):
        loss = x.exp().mul(2).sum()
        loss.backward()
        with pytest.warns(gradmend.GradmendWarning):
            loss.backward()
    torch.testing.assert_close(x.grad, 4 * x.detach().exp())


def test_autograd_grad_and_custom_functions_keep_theirs():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * g * x

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with warnings.catch_warnings(), gradmend.heal(retain=True):
        warnings.simplefilter("ignore")
        y = Square.apply(x).sin().sum()
        first = torch.autograd.grad(y, x)[0]
        second = torch.autograd.grad(y, x)[0]
    assert torch.equal(first, second)
    torch.testing.assert_close(first, (2 * x * (x * x).cos()).detach())


def test_a_graph_that_grows_is_told_with_its_line():
    with pytest.warns(gradmend.GradmendWarning, match="grows each time") as found, gradmend.heal(retain=True):
        carried_over(24)
    words = [str(w.message) for w in found if "grows" in str(w.message)]
    assert len(words) == 1 and "h.detach()" in words[0]


def test_the_budget_bounds_it():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(gradmend.GradmendError, match="budget"), gradmend.heal(budget=2000, retain=True):
            carried_over(40)


def test_graphs_are_freed_when_nobody_holds_them():
    made: list[int] = []
    x = torch.ones(1000, requires_grad=True)
    with gradmend.heal(retain=True):
        for _ in range(5):
            y = x.exp()
            loss = y.sum()
            loss.backward()
            del y, loss
            from gradmend.capture.taps.hub import LEDGER

            LEDGER.settle()
            made.append(sum(t.living() for t in LEDGER.timelines.values()))
    assert made[-1] == made[0] == 0


def test_names_are_put_back_whatever_was_armed_before():
    from torch.autograd import graph

    original = graph._engine_run_backward
    gradmend.install()
    try:
        with gradmend.heal(retain=True), gradmend.heal(retain=True):
            x = torch.ones(2, requires_grad=True)
            loss = x.exp().sum()
            loss.backward()
            with pytest.warns(gradmend.GradmendWarning):
                loss.backward()
        assert graph._engine_run_backward is not original  # install() still listens
    finally:
        gradmend.uninstall()
    assert graph._engine_run_backward is original
