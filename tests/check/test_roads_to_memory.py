"""Writes that come by roads few programs take: a Function's backward, DLPack, ops of integers, one module of many."""

from __future__ import annotations

import pytest

from gradmend.check.files import check_file

BACKWARD = """\
import torch
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * a * b
    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        to_b = a * a * grad
        return {result}, to_b
x = torch.rand(3, requires_grad=True)
y = torch.rand(3, requires_grad=True)
Scaled.apply(x.{before}, y).sum().backward()
"""
DLPACK = """\
import torch
from torch.utils.dlpack import from_dlpack
w = torch.rand(4, requires_grad=True)
window = torch.rand(4)
out = w * window
shown = from_dlpack({given})
shown -= shown.min()
out.sum().backward()
"""
MASK = """\
import torch
a = torch.rand(3, 4, requires_grad=True)
mask = torch.rand(3) < 0.5
out = torch.where({given}.unsqueeze(-1), 0.0, a)
mask.{write}
out.sum().backward()
"""
MODULES = """\
import torch
from torch import nn
class Noise(nn.Module):
    def forward(self, x):
        self.mask = torch.rand(4)
        return x * self.mask
    def report(self):
        return self.mask.{op}(2.0).mean()
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 4))
        self.noise = Noise()
    def forward(self, x):
        return self.noise(self.body(x))
net = nn.Sequential(Block(), Block())
out = net(torch.rand(2, 4))
seen = [m.report() for m in net.modules() if isinstance(m, Noise)]
out.sum().backward()
"""

RAISES = [
    (BACKWARD.format(result="a.mul_(2 * grad * b)", before="exp()"), 11, "GM101"),
    (MASK.format(given="mask", write="logical_not_()"), 5, "GM106"),
    (MASK.format(given="mask", write="bitwise_or_(mask.roll(1))"), 5, "GM106"),
    (MODULES.format(op="div_"), 8, "GM102"),
]
FUNC = """\
import torch
from torch.func import grad, vmap
w = torch.rand(3, requires_grad=True)
slopes = vmap(grad(lambda p, x: (p * x).sum() ** 2), in_dims=(None, 0))({given}, torch.rand(4, 3))
norms = slopes.norm(dim=1)
norms.div_(2.0)
(norms * w[0]).sum().backward()
"""
RIGHT = [
    FUNC.format(given="w.detach()"),
    BACKWARD.format(result="a.mul_(2 * grad * b)", before="add(1)"),
    BACKWARD.format(result="a.mul(2 * grad * b)", before="exp()"),
    DLPACK.format(given="window.clone()"),
    MASK.format(given="mask.clone()", write="logical_not_()"),
    MODULES.format(op="div"),
]


@pytest.mark.parametrize(("source", "line", "rule"), RAISES)
def test_it_is_told_where_pytorch_refuses_it(source: str, line: int, rule: str) -> None:
    with pytest.raises(RuntimeError, match="inplace"):
        exec(source, {})
    found = check_file("/nowhere/main.py", source.encode()).findings
    assert [(f.place.line, f.rule) for f in found] == [(line, rule)]


def test_dlpack_moves_no_counter() -> None:
    source = DLPACK.format(given="window")
    ran: dict = {}
    exec(source, ran)
    assert (ran["w"].grad == ran["window"]).all()  # what it was changed to, not what was multiplied
    (found,) = check_file("/nowhere/main.py", source.encode()).findings
    assert (found.place.line, found.rule) == (7, "GM201") and "through DLPack" in found.message


@pytest.mark.parametrize("source", RIGHT)
def test_right_programs_are_left_alone(source: str) -> None:
    exec(source, {})
    assert check_file("/nowhere/main.py", source.encode()).findings == []
