"""What a custom Function keeps on ctx: in containers and dataclasses too; a graph of its own is left to itself."""

from __future__ import annotations

import dataclasses
from collections import deque, namedtuple

import pytest
import torch

import gradmend

pytestmark = pytest.mark.filterwarnings("ignore::gradmend.GradmendWarning")
Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass(frozen=True)
class Kept:
    a: object


HOLDERS = {
    "list of lists": (lambda y: [[y]], lambda k: k[0][0]),
    "dict of lists": (lambda y: {"a": [0, y]}, lambda k: k["a"][1]),
    "dataclass": (Kept, lambda k: k.a),
    "tuple of dataclasses": (lambda y: (Kept([y]),), lambda k: k[0].a[0]),
    "named tuple in a deque": (lambda y: deque([Pair(1, y)]), lambda k: k[0].b),
}


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, holder):
        y = x.exp()
        ctx.kept, ctx.holder = HOLDERS[holder][0](y), holder
        return y

    @staticmethod
    def backward(ctx, g):
        return g * HOLDERS[ctx.holder][1](ctx.kept), None


def overwritten(holder: str) -> torch.Tensor:
    x = torch.ones(3, requires_grad=True)
    y = Exp.apply(x, holder)
    z = y * 1
    y.data.mul_(5)
    z.sum().backward()
    return x.grad


@pytest.mark.parametrize("holder", HOLDERS)
def test_tensors_in_holders_are_seen_and_healed(holder):
    with pytest.raises(gradmend.ConflictError) as stop, gradmend.watch():
        overwritten(holder)
    assert stop.value.conflict.rule == "GM205"
    with gradmend.heal():
        got = overwritten(holder)
    assert torch.equal(got, torch.ones(3).exp())


class Inner(torch.autograd.Function):
    """Differentiates a graph of its own, made in forward."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = (ctx.x * 2).tanh()
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, g):
        return torch.autograd.grad(ctx.y, ctx.x, g)[0]


def test_a_graph_of_its_own_is_told_by_its_own_saves():
    def program() -> torch.Tensor:
        x = torch.ones(3, requires_grad=True)
        out = Inner.apply(x)
        out.mul_(3)  # the memory of what tanh keeps
        out.sum().backward()
        return x.grad

    with pytest.raises(gradmend.ConflictError) as stop, gradmend.watch():
        program()
    assert stop.value.conflict.rule == "GM101"
    with gradmend.heal():
        got = program()
    torch.testing.assert_close(got, 6 * (1 - torch.full((3,), 2.0).tanh() ** 2))
