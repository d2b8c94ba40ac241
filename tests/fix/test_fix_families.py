"""Programs whose write or graph no trial sees: inside a custom backward, inside a scripted function."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gradmend.fix.search.outcome import Plan

HEAD = "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"

# name -> (program, the line before, the line after)
PROGRAMS = {
    "graph_inside_a_custom_backward": (
        """
class Inner(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        with torch.enable_grad():
            xx, ww = x.detach().requires_grad_(), w.detach().requires_grad_()
            y = torch.tanh(xx @ ww)
        ctx.inner = (xx, ww, y)
        return y.detach()

    @staticmethod
    def backward(ctx, g):
        xx, ww, y = ctx.inner
        (gx,) = torch.autograd.grad(y, xx, g)
        (gw,) = torch.autograd.grad(y, ww, g)
        return gx, gw

w = torch.randn(3, 3, requires_grad=True)
Inner.apply(torch.randn(2, 3, requires_grad=True), w).pow(2).sum().backward()
""",
        "        (gx,) = torch.autograd.grad(y, xx, g)",
        "        (gx,) = torch.autograd.grad(y, xx, g, retain_graph=True)",
    ),
    "write_in_a_scripted_function": (
        """
@torch.jit.script
def act(x):
    y = torch.sigmoid(x)
    y.mul_(2.0)
    return y

act(nn.Linear(3, 3)(torch.randn(4, 3))).pow(2).sum().backward()
""",
        "    y.mul_(2.0)",
        "    y = y.mul(2.0)",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_line_out_of_sight_is_fixed(name: str, plan: Callable[[str], Plan]) -> None:
    program, before, after = PROGRAMS[name]
    found = plan(HEAD + program)
    assert found.status == "proven", found.message
    assert list(found.sources.values()) == [HEAD + program.replace(before + "\n", after + "\n")]
