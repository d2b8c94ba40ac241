"""Small habits of PyTorch's that our names must not change: errors, scripting, batched gradients."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import gradmend
from gradmend.capture.taps import homes


@contextlib.contextmanager
def installed():
    gradmend.install()
    try:
        yield
    finally:
        gradmend.uninstall()


CONTEXTS = [gradmend.watch, gradmend.heal, installed]
EVERYWHERE = pytest.mark.parametrize("context", CONTEXTS)


@EVERYWHERE
def test_deleting_data_fails_as_it_does(context):
    with pytest.raises(RuntimeError) as plain:
        del torch.ones(1).data
    with pytest.raises(RuntimeError) as told, context():
        del torch.ones(1).data
    assert str(told.value) == str(plain.value)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]


@EVERYWHERE
def test_a_delayed_error_keeps_its_words(context):
    x = torch.tensor(3.0, requires_grad=True)
    w = torch.tensor(1.0, requires_grad=True)
    with context():
        (g,) = torch.autograd.grad(Square.apply(x), x, w, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            g.backward()


@EVERYWHERE
def test_scripted_code_names_what_we_tap(context):
    with context():
        scripted = torch.jit.CompilationUnit(
            "def f(x: Tensor):\n    y = torch.as_tensor(0.0)\n    return torch.heaviside(x, y), torch.detach(x)\n"
        )

        @torch.jit.script
        def of_a_function(x: torch.Tensor):
            return torch.heaviside(x, torch.as_tensor(0.0))

        assert scripted.f(torch.ones(1))[0] == of_a_function(torch.ones(1)) == 1


def test_every_tapped_builtin_of_torchscript_is_still_one():
    from torch.jit._builtins import _find_builtin

    missing = []
    for owner, name, tap in homes.patches():
        original = getattr(tap, "__gradmend_original__", None)
        if original is not None and _find_builtin(original) and _find_builtin(tap) != _find_builtin(original):
            missing.append((owner, name))
    assert not missing


class Narrow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.size = x.size()
        return x.narrow(0, 0, 2).clone()

    @staticmethod
    def backward(ctx, g):
        out = g.new_zeros(ctx.size)
        out.narrow(0, 0, 2).copy_(g)
        return out


def batched(kind: str) -> torch.Tensor:
    x = torch.ones(4, requires_grad=True)
    y = Narrow.apply(x) if kind == "backward" else x * 2
    if kind == "hook":
        y.register_hook(lambda g: g.mul_(2))
    elif kind == "copy":
        y.register_hook(lambda g: g.clone().mul_(2))
    return torch.autograd.grad(y, x, torch.eye(len(y)), is_grads_batched=True)[0]


@EVERYWHERE
@pytest.mark.parametrize("kind", ["backward", "hook", "copy", "none"])
def test_batched_gradients_may_be_written(kind, context):
    with context():
        got = batched(kind)
    assert torch.equal(got, batched(kind))


def shared_and_batched() -> torch.Tensor:
    x = torch.ones(4, requires_grad=True)
    y = x * 2
    z = y + 0  # passes on the very gradient that `y + z` hands to both
    z.register_hook(lambda g: (g.mul_(3), None)[1])
    return torch.autograd.grad(y + z, x, torch.eye(4), is_grads_batched=True)[0]


def test_a_batched_gradient_that_two_branches_share_is_told():
    with pytest.raises(gradmend.ConflictError) as stop, gradmend.watch():
        shared_and_batched()
    assert stop.value.conflict.rule == "GM207"
    with gradmend.heal():
        got = shared_and_batched()
    assert torch.equal(got, 8 * torch.eye(4))  # 2 of the one branch and 3 * 2 of the other; 12 as it is


class Log(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(func.__name__)
        return func(*args, **(kwargs or {}))


@EVERYWHERE
def test_a_dispatch_mode_sees_the_program_and_not_us(context):
    x = torch.tensor(1.0, requires_grad=True)
    log = Log()
    with context():
        modes = lambda: (log, contextlib.nullcontext())  # noqa: E731
        checkpoint(lambda t: t.exp().sin(), x, use_reentrant=False, context_fn=modes)
    assert log.ops == ["exp.default", "sin.default"]
