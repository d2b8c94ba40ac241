"""Scripted, traced and loaded functions that write: they run as they are, and what they overwrite is told and healed."""

from __future__ import annotations

import io

import pytest
import torch

import gradmend

pytestmark = pytest.mark.filterwarnings("ignore::gradmend.GradmendWarning", "ignore::DeprecationWarning")
D = torch.float64


@torch.jit.script
def scaled_(t, s: float):
    if s > 0:
        t *= s
    return t


@torch.jit.script
def first_of(ys: list[torch.Tensor]):
    ys[0] = ys[0] * 5.0  # a list is copied: the caller's stays as it is
    ys[1].mul_(2.0)
    return ys[0]


@torch.jit.script
def by_way(y):
    if torch.jit.is_scripting():
        y.mul_(2.0)
    else:
        y.mul_(5.0)
    return y


class Tripled(torch.nn.Module):
    def forward(self, y):
        y.mul_(3.0)
        return y


def loaded() -> torch.nn.Module:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(Tripled()), file)
    file.seek(0)
    return torch.jit.load(file)


def traced():
    return torch.jit.trace(lambda y: y.mul_(3.0), torch.ones(2, dtype=D))


TRIPLING = {
    "function": lambda: lambda y: scaled_(y, 3.0),
    "module": lambda: torch.jit.script(Tripled()),
    "loaded": loaded,
    "traced": traced,
    "without source": lambda: torch.jit.CompilationUnit("def f(t: Tensor):\n    return t.mul_(3.0)\n").f,
}


def leaf() -> torch.Tensor:
    return torch.tensor([0.5, 1.0], dtype=D, requires_grad=True)


def overwritten(triple, through) -> torch.Tensor:
    x = leaf()
    y = x * 1
    z = y * y
    through(triple, y)
    z.sum().backward()
    return x


def with_grad(triple, y):
    triple(y)


def without_grad(triple, y):
    with torch.no_grad():
        triple(y)


def by_data(triple, y):
    triple(y.data)


@pytest.mark.parametrize("through", [with_grad, without_grad, by_data])
@pytest.mark.parametrize("kind", TRIPLING)
def test_what_it_overwrites_is_told_and_healed(kind, through):
    triple = TRIPLING[kind]()
    with pytest.raises(gradmend.ConflictError), gradmend.watch():
        overwritten(triple, through)
    with gradmend.heal():
        x = overwritten(triple, through)
    assert torch.equal(x.grad, 2 * x.detach())


@pytest.mark.parametrize("through", [without_grad, by_data])
@pytest.mark.parametrize("kind", TRIPLING)
def test_an_edit_of_a_live_tensor_stops(kind, through):
    triple = TRIPLING[kind]()
    for context in (gradmend.watch, gradmend.heal):
        y = leaf() * 1
        with pytest.raises(gradmend.ConflictError) as stop, context():
            through(triple, y)
            (y * y).sum().backward()
        assert stop.value.conflict.rule == "GM210"


def test_it_runs_as_it_is():
    x = leaf()
    with gradmend.heal():
        ys = [x * 1, x * 3]
        (first_of(ys) * ys[0]).sum().backward()
    assert torch.equal(x.grad, 10 * x.detach())
    x = leaf()
    with gradmend.heal():
        by_way(x * 1).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    branch = torch.jit.trace(lambda y: y.mul_(2.0) if y.sum() > 0 else y.mul_(5.0), torch.ones(2, dtype=D))
    x = leaf()
    with gradmend.heal():
        branch(x * -1).sum().backward()
    assert x.grad.tolist() == [-2.0, -2.0]


def test_one_that_writes_nothing_costs_nothing():
    @torch.jit.script
    def doubled(t):
        return t * 2

    with gradmend.watch() as session:
        x = leaf()
        y = x * 1
        z = y * y
        doubled(y)
        z.sum().backward()
    assert not session.conflicts
