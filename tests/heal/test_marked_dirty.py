"""`apply()` steps the version counter of what a custom forward marks dirty: no Write of its own, and not an unseen one."""

import pytest
import torch

import gradmend

pytestmark = pytest.mark.filterwarnings("ignore::gradmend.GradmendWarning")


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.mark_dirty(a)
        return a.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g * 2


class DoubleBySetup(torch.autograd.Function):
    @staticmethod
    def forward(a):
        return a.mul_(2)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g * 2


class ExpOnCtx(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.mark_dirty(a, a)  # steps the counter twice
        ctx.y = a.exp_().detach()  # the output itself would be a cycle that nobody frees
        return a

    @staticmethod
    def backward(ctx, g):
        return g * ctx.y


class ExpSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.mark_dirty(a)
        ctx.save_for_backward(a.exp_())
        return a

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


class Unwritten(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.mark_dirty(a)
        return a

    @staticmethod
    def backward(ctx, g):
        return g * 1


def _on_a_view(x):
    y = x.exp()
    Double.apply(y[:2])
    return y


def _under_no_grad(x):
    y = x.exp()
    loss = y.sum()
    with torch.no_grad():
        Double.apply(y)
    return loss


def _on_a_constant(x, function=Double):
    t = torch.ones(3)
    loss = (x * t).sum()
    function.apply(t)
    return loss


WAYS = {
    "saved output": (lambda x: Double.apply(x.exp()), lambda x: x.exp() * 2, "GM101"),
    "setup_context": (lambda x: DoubleBySetup.apply(x.exp()), lambda x: x.exp() * 2, "GM101"),
    "again": (lambda x: Double.apply(Double.apply(x.exp())), lambda x: x.exp() * 4, "GM101"),
    "on ctx": (lambda x: ExpOnCtx.apply(ExpOnCtx.apply(x * 1)), lambda x: x.exp().exp(), "GM205"),
    "saved for backward": (lambda x: ExpSaved.apply(ExpSaved.apply(x * 1)), lambda x: x.exp().exp(), "GM102"),
    "view": (_on_a_view, lambda x: x.exp() * torch.tensor([2.0, 2.0, 1.0]), "GM101"),
    "no_grad": (_under_no_grad, lambda x: x.exp(), "GM101"),
    "constant": (_on_a_constant, lambda x: x * 1, "GM102"),
    "constant, setup_context": (lambda x: _on_a_constant(x, DoubleBySetup), lambda x: x * 1, "GM102"),
}


def _gradient(function):
    x = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
    function(x).sum().backward()
    return x.grad


@pytest.mark.parametrize("way", WAYS)
def test_healed_and_named(way):
    program, right, rule = WAYS[way]
    with gradmend.heal() as session:
        healed = _gradient(program)
    assert torch.allclose(healed, _gradient(right)) and session.outcome == "healed"
    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as caught:
        _gradient(program)
    assert caught.value.conflict.rule == rule
    assert caught.value.conflict.writes[0].op in ("mul_", "exp_")


@pytest.mark.parametrize("context", [gradmend.watch, gradmend.heal])
def test_marked_and_not_written(context):
    with context() as session:
        got = _gradient(lambda x: Unwritten.apply(x.exp()))
    assert torch.allclose(got, _gradient(torch.exp))
    assert [c.rule for c in session.conflicts] == ["GM109"]


def test_an_unseen_write_beside_it_still_stops():
    add_ = torch._C.TensorBase.add_
    with gradmend.heal(), pytest.raises(gradmend.ConflictError, match="unseen"):
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        z = Double.apply(y)
        add_(y.detach(), 1)
        z.sum().backward()
