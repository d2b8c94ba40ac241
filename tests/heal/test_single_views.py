"""Several views of one call under heal(): written as they like, with the gradient of the forward that ran."""

from __future__ import annotations

import pytest
import torch

import gradmend

MAKERS = {
    "unbind": lambda b: b.unbind(),
    "unbind of a column": lambda b: b.unbind(dim=1),
    "torch.unbind": lambda b: torch.unbind(b, 0),
    "iteration": tuple,
    "split": lambda b: b.split(2),
    "split by sizes": lambda b: b.split([1, 3]),
    "split of columns": lambda b: torch.split(b, 1, dim=1),
    "torch.split_with_sizes": lambda b: torch.split_with_sizes(b, [3, 1], 0),
    "chunk": lambda b: b.chunk(3, dim=-1),
    "torch.chunk": lambda b: torch.chunk(b, 2),
    "tensor_split": lambda b: b.tensor_split(2),
}
WRITES = {
    "none": lambda base, views: None,
    "view": lambda base, views: views[0].mul_(3),
    "base": lambda base, views: base.mul_(2),
    "both": lambda base, views: (views[1].exp_(), base[0].add_(1), views[0].zero_()),
    "part of a view": lambda base, views: views[1][0].fill_(0.25),
}


def loss(x, make, write):
    base = x * 1.5
    views = make(base)
    kept = views[0].sin().sum() + (views[0].flatten()[0] * views[1].flatten()).sum()
    write(base, views)
    return kept + sum(v.cos().sum() for v in views) + base.pow(2).sum()


def slopes(x, make, write, eps=1e-6):
    """Float64 differences of the very forward."""
    found = torch.zeros_like(x)
    for i in range(x.numel()):
        step = torch.zeros_like(x).flatten()
        step[i] = eps
        step = step.reshape(x.shape)
        with torch.no_grad():
            found.view(-1)[i] = (loss(x + step, make, write) - loss(x - step, make, write)) / (2 * eps)
    return found


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("make", MAKERS)
def test_gradient_is_that_of_the_forward(make, write):
    x = torch.linspace(0.1, 1.2, 12, dtype=torch.float64).reshape(4, 3).requires_grad_()
    with gradmend.heal():
        loss(x, MAKERS[make], WRITES[write]).backward()
    torch.testing.assert_close(x.grad, slopes(x.detach(), MAKERS[make], WRITES[write]), rtol=1e-6, atol=1e-7)


def simulate(rate):
    state = torch.zeros(5, 3, dtype=rate.dtype)
    state[0] = torch.tensor([0.9, 0.1, 0.0])
    for t in range(1, 5):
        s, i, r = state[t - 1]
        new = rate * s * i
        state[t, 0] = s - new
        state[t, 1] = i + new - 0.1 * i
        state[t, 2] = r + 0.1 * i
    return state[-1, 1]


def test_a_simulator_that_fills_its_trajectory():
    rate = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError), gradmend.watch():
        simulate(rate).backward()
    with gradmend.heal():
        simulate(rate).backward()
    with torch.no_grad():
        slope = (simulate(rate + 1e-6) - simulate(rate - 1e-6)) / 2e-6
    torch.testing.assert_close(rate.grad, slope, rtol=1e-7, atol=0)


def test_only_heal_makes_them_one_by_one():
    x = torch.ones(2, 3, requires_grad=True)
    with gradmend.heal():
        assert "Select" in x.unbind()[0].grad_fn.name()
        with torch.no_grad():
            assert x.unbind()[0].grad_fn is None
    with gradmend.watch():
        assert "Unbind" in x.unbind()[0].grad_fn.name()
    assert "Unbind" in x.unbind()[0].grad_fn.name()


def test_large_ones_stay_as_they_are():
    x = torch.ones(3000, 30, requires_grad=True)  # one by one: a gigabyte of zeros in backward
    with gradmend.heal():
        rows = x.unbind()
        assert "Unbind" in rows[0].grad_fn.name()
        sum(r.sum() for r in rows[:3]).backward()
    assert x.grad.sum() == 90


def test_wrong_arguments_fail_as_they_do():
    x = torch.ones(2, 3, requires_grad=True)
    for call in (lambda: x.unbind(5), lambda: x.split([1, 2, 3]), lambda: x.chunk(0), lambda: torch.unbind()):
        with pytest.raises((RuntimeError, IndexError, TypeError)) as plain:
            call()
        with pytest.raises(type(plain.value)) as told, gradmend.heal():
            call()
        assert str(told.value) == str(plain.value)


LATE = {
    "iteration": lambda b: list(b),
    "indices": lambda b: [b[i] for i in range(4)],
    "chunk": lambda b: b.chunk(4),
}
INTO = {
    "add_": lambda row, x: row.add_(x),
    "+=": lambda row, x: row.__iadd__(x),
    "item": lambda row, x: row.__setitem__(..., x * x),
    "mask": lambda row, x: row.__setitem__(row == 0, x[1]),
    "function": lambda row, x: torch.relu_(row.add_(x)),
    "overload": lambda row, x: torch.ops.aten.add_(row, x),
}


@pytest.mark.parametrize("write", INTO)
@pytest.mark.parametrize("make", LATE)
def test_views_made_before_their_base_required_grad(make, write):
    """PyTorch takes the second one for a leaf: its history is made when somebody looks at it."""
    x = torch.tensor([0.5, 1.5, 2.5], requires_grad=True)
    with gradmend.heal():
        b = torch.zeros(4, 3)
        for row in LATE[make](b):
            INTO[write](row, x)
        (b * torch.arange(1.0, 5.0)[:, None]).pow(2).sum().backward()
    healed, x.grad = x.grad, None
    rows = []
    for i in range(4):
        row = torch.zeros(3)
        INTO[write](row, x)
        rows.append(row * (i + 1))
    torch.stack(rows).pow(2).sum().backward()
    torch.testing.assert_close(healed, x.grad)


def test_a_leaf_stays_a_leaf():
    x = torch.ones(4, 3, requires_grad=True)
    with gradmend.heal(), pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        x.add_(1)
    with gradmend.heal(), pytest.raises(RuntimeError, match="a view of a leaf Variable"):
        x[0].add_(1)
