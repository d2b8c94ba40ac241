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


class Counting(torch.autograd.Function):
    """Its backward writes to what it keeps."""

    @staticmethod
    def forward(ctx, x):
        ctx.state, ctx.k = {"x": x, "n": 0}, 1
        return x * x

    @staticmethod
    def backward(ctx, g):
        ctx.state["n"] += 1
        ctx.k = ctx.k * 2
        return 2 * ctx.state["x"] * g * ctx.state["n"] * ctx.k


def test_what_backward_changes_on_ctx_stays_changed():
    x = torch.ones(2, requires_grad=True)
    with gradmend.heal():
        y = x * 1
        z = Counting.apply(y)
        y.mul_(3)
        first = torch.autograd.grad(z.sum(), x, retain_graph=True)[0]
        second = torch.autograd.grad(z.sum(), x)[0]
    assert first.tolist() == [4.0, 4.0] and second.tolist() == [16.0, 16.0]


def test_the_leaf_of_a_graph_of_its_own_stays():
    x = torch.ones(3, requires_grad=True)
    with gradmend.heal():
        y = x * 1
        z = Inner.apply(y)
        y.mul_(3)  # the memory of ctx.x too
        z.sum().backward()
    torch.testing.assert_close(x.grad, 2 * (1 - torch.full((3,), 2.0).tanh() ** 2))


class LetsGo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s, how):
        ctx.held, ctx.s, ctx.how = [s], s, how
        return x * s

    @staticmethod
    def backward(ctx, g):
        if ctx.how == "none":
            ctx.held = None
        elif ctx.held:
            ctx.held.pop()
        return g * ctx.s, None, None


@pytest.mark.parametrize("how", ["none", "pop"])
def test_a_container_that_the_first_backward_emptied(how):
    x, s = torch.ones(2, requires_grad=True), torch.full((2,), 2.0)
    with gradmend.heal():
        z = LetsGo.apply(x, s, how).sum()
        s.mul_(3)
        z.backward(retain_graph=True)
        z.backward()
    assert x.grad.tolist() == [4.0, 4.0]


class KeepsAnAlias(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, b):
        ctx.b = b.detach()
        return x * b

    @staticmethod
    def backward(ctx, g):
        return g * ctx.b, None


def under_set(b):
    b.set_(torch.full((3,), 7.0))


def under_data(b):
    b.data = torch.full((3,), 7.0)


@pytest.mark.parametrize("policy", ["watch", "heal"])
@pytest.mark.parametrize("swap", [under_set, under_data])
def test_an_alias_keeps_its_memory_when_the_tensor_gets_another(policy, swap):
    x, b = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
    with getattr(gradmend, policy)() as session:
        y = KeepsAnAlias.apply(x, b)
        swap(b)
        b.add_(1)  # steps the counter of ctx.b too, which lies in other memory now
        y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    assert session.outcome == "clean"


def test_a_write_to_the_memory_that_an_alias_kept_is_found():
    x, b = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
    with gradmend.heal() as session:
        y = KeepsAnAlias.apply(x, b)
        other = b.detach()
        b.set_(torch.full((3,), 7.0))
        other.add_(1)
        y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    assert [c.rule for c in session.conflicts] == ["GM205"]
