"""A leaf written in grad mode: what reads the written value says whether it is an update or part of the computation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gradmend.fix.judging.judge import COMPUTED, UPDATED
from gradmend.fix.search.outcome import Plan

HEAD = "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"

# name -> (program, a line that the fix adds)
UPDATES = {
    "average_of_parameters": (
        """
net, ema = nn.Linear(3, 2), nn.Linear(3, 2)
opt = torch.optim.SGD(net.parameters(), 0.1)

def update(a, b, m):
    for p, q in zip(a.parameters(), b.parameters()):
        p.mul_(m).add_(q, alpha=1 - m)

for i in range(3):
    x = torch.randn(4, 3)
    update(ema, net, 0.9)
    loss = (net(x) - ema(x).detach()).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        "        with torch.no_grad():",
    ),
    "copied_from_another_network": (
        """
net, target = nn.Linear(3, 2), nn.Linear(3, 2)
for a, b in zip(target.parameters(), net.parameters()):
    a.copy_(b)
(net(torch.randn(4, 3)) - 0.9 * target(torch.randn(4, 3))).pow(2).mean().backward()
""",
        "    with torch.no_grad():",
    ),
    "prototype_moved_inside_forward": (
        """
class Proto(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 4)
        self.proto = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        z = self.lin(x)
        self.proto.mul_(0.9).add_(0.1 * z.mean(0))
        return z.pow(2).mean()

net = Proto()
net(torch.randn(4, 3)).backward()
""",
        "        with torch.no_grad():",
    ),
    "step_with_momentum": (
        """
w = torch.randn(3, requires_grad=True)
v = torch.zeros(3)
for i in range(3):
    (w * torch.arange(3.0)).sum().pow(2).backward()
    v = 0.9 * v + w.grad
    w -= 0.01 * v
    w.grad.zero_()
""",
        "    with torch.no_grad():",
    ),
}
COMPUTATIONS = {
    "view_of_a_parameter": (
        """
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))

    def scaled(self, s):
        w = self.weight.view(-1)
        w *= s
        return w.view(4, 3)

    def forward(self, x):
        return x @ self.scaled(0.5).t()

net = Scaled()
opt = torch.optim.SGD(net.parameters(), 0.1)
for i in range(3):
    opt.zero_grad()
    net(torch.randn(4, 3)).pow(2).mean().backward()
    opt.step()
""",
        "        w = w * s",
    ),
    "parameter_clamped_in_forward": (
        """
class Positive(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3))

    def forward(self, x):
        self.w.clamp_(min=0)
        return x * self.w

net = Positive()
opt = torch.optim.SGD(net.parameters(), 0.1)
for i in range(3):
    opt.zero_grad()
    (net(torch.randn(4, 3)) - 1).pow(2).mean().backward()
    opt.step()
""",
        "        w = self.w.clamp(min=0)",
    ),
    "input_masked_in_forward": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 2)

    def forward(self, x):
        x[:, 0] = 0
        return self.lin(x)

x = torch.randn(4, 3, requires_grad=True)
Net()(x).pow(2).mean().backward()
""",
        "        x = x.clone()",
    ),
}


@pytest.mark.parametrize("name", UPDATES)
def test_what_no_graph_reads_is_an_update(name: str, plan: Callable[[str], Plan]) -> None:
    program, line = UPDATES[name]
    found = plan(HEAD + program)
    assert found.status == "proven", found.message
    assert (found.basis, found.meaning) == ("update", UPDATED)
    (text,) = found.sources.values()
    assert line in text.splitlines()


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_what_goes_on_into_the_loss_is_part_of_the_computation(
    name: str, plan: Callable[[str], Plan]
) -> None:
    program, line = COMPUTATIONS[name]
    found = plan(HEAD + program)
    assert found.status == "proven", found.message
    assert (found.basis, found.meaning) == ("differences", COMPUTED)
    (text,) = found.sources.values()
    assert line in text.splitlines()
    assert "no_grad" not in text


ALIASED = """
import torch

def main():
    scale = torch.ones(3)
    state = {"scale": scale}
    x = torch.ones(3, requires_grad=True)
    y = x * scale
    scale += 1
    (y * scale).sum().backward()
    END

main()
"""


@pytest.mark.parametrize("end", ['torch.save(state, "out.pt")', "print(len(state))"])
def test_an_edit_that_keeps_the_object_comes_first_where_others_hold_it(
    end: str, plan: Callable[[str], Plan]
) -> None:
    found = plan(ALIASED.replace("END", end))
    assert found.status == "proven"
    (text,) = found.sources.values()
    assert "scale += 1" in text and "scale.clone()" in text


LEAVES = """
import sys
import numpy as np
import torch

shift = torch.zeros(3)
kept = [shift]
x = torch.ones(3, requires_grad=True)
y = x.exp() * (shift + 1)
shift += 1
(y * shift).sum().backward()
SAVE
del kept
"""


@pytest.mark.parametrize(
    "save",
    [
        'np.save("kept.npy", kept[0].numpy())',
        'open("log.txt", "w").write(str(kept[0].sum().item()))',
        "print(kept[0].tolist(), file=sys.stderr)",
    ],
)
def test_files_and_stderr_are_compared(save: str, plan: Callable[[str], Plan], tmp_path: Path) -> None:
    program = LEAVES.replace("SAVE", save).replace("y = x.exp() * (shift + 1)", "y = x.exp() * shift")
    found = plan(program)
    assert found.status == "proven"
    (text,) = found.sources.values()
    assert "shift += 1" in text, "a rebound `shift` leaves the old value in `kept`, and so in what is saved"
    assert not list(tmp_path.glob("kept.npy")) and not list(tmp_path.glob("log.txt"))


def test_calls_that_were_not_judged_are_told(runner: Callable[..., object]) -> None:
    from gradmend.fix import show
    from gradmend.fix.search.plan import Planner

    program = """
import torch

x = torch.ones(3, requires_grad=True)
for i in range(5):
    y = x.exp()
    y += 1
    y.sum().backward()
"""
    planner = Planner(runner(program, steps=3), lambda text: None, 240)  # type: ignore[arg-type]
    said = show.proof(planner.plan(), None)
    assert "proven: the first 3 backward calls" in said
    assert "more backward calls than were judged: --steps" in said
