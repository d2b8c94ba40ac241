"""Whole programs: each `pairs/programs/NAME.bad.py` is fixed, and then prints what NAME.good.py, fixed by hand, prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fix_trials import Make, printed

from gradmend.fix.search.outcome import Plan

PROGRAMS = Path(__file__).parent / "pairs" / "programs"
NAMES = sorted(p.name.removesuffix(".bad.py") for p in PROGRAMS.glob("*.bad.py"))
RIGHT = {"ctx_changed_as_meant", "safe_looking_dangerous"}


FIXED = [n for n in NAMES if n not in RIGHT]
# Two seconds each: every second one waits for `make test-slow`.
LATER = [pytest.param(n, marks=pytest.mark.slow) for n in FIXED[1::2]]


@pytest.mark.parametrize("name", [*FIXED[::2], *LATER])
def test_fixed(name: str, plan: Callable[[str], Plan], runner: Make, tmp_path: Path) -> None:
    found = plan((PROGRAMS / f"{name}.bad.py").read_text())
    tried = [(t.candidate.title, t.verdict.why) for t in found.tried]
    assert found.status == "proven", (found.message, tried)
    fixed = printed(runner(found.sources[str(tmp_path / "main.py")]))
    wanted = printed(runner((PROGRAMS / f"{name}.good.py").read_text()))
    assert wanted and fixed == pytest.approx(wanted, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_right_programs_are_left_alone(name: str, plan: Callable[[str], Plan]) -> None:
    found = plan((PROGRAMS / f"{name}.bad.py").read_text())
    assert (found.status, found.sources) == ("clean", {})


def test_saving_for_backward_is_an_option_beside_the_fix(
    plan: Callable[[str], Plan], runner: Make, tmp_path: Path
) -> None:
    source = (PROGRAMS / "ctx_beside_saved.bad.py").read_text()
    found = plan(source)
    (option,) = found.options
    assert option.candidate.kind == "save_for_backward" and option.proven
    text = option.sources[str(tmp_path / "main.py")]
    assert "ctx.save_for_backward(s, x)\n        ctx.n = 2\n" in text
    assert "s, x = ctx.saved_tensors\n        return ctx.n * x * s * g, None\n" in text
    # Without the fix of the write, PyTorch refuses what it let pass.
    refused = runner(text.replace("h = h * 2", "h *= 2")).run({}, "plain")
    assert refused.error and "modified by an inplace operation" in refused.error["message"]


def test_losses_are_summed_where_that_gives_the_same_gradient(plan: Callable[[str], Plan]) -> None:
    source = (PROGRAMS / "two_heads_one_trunk.bad.py").read_text()
    found = plan(source)
    assert [c.kind for c in found.chosen] == ["sum_losses"] and [len(s) for s in found.joined] == [2]
    assert "(la + lb).backward()" in next(iter(found.sources.values()))
    # A hook that is not linear tells one gradient from the sum of two.
    hook = "trunk.weight.register_hook(lambda g: g.clamp(-0.01, 0.01))\nla.backward()"
    clamped = plan(source.replace("la.backward()", hook))
    assert [c.kind for c in clamped.chosen] == ["second_backward"]
    (summed,) = [t for t in clamped.tried if t.candidate.kind == "sum_losses"]
    assert "the gradient of trunk.weight" in summed.verdict.why


PINN = """\
import json
import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
x = torch.linspace(0, 1, 5).unsqueeze(1).requires_grad_()
u = net(x)
u_x = torch.autograd.grad(u.sum(), x)[0]
loss = ({used} - u).pow(2).mean()
loss.backward()
print(json.dumps({{"grads": [p.grad.abs().sum().item() for p in net.parameters()]}}))
"""


def test_a_gradient_in_the_loss_is_no_constant_unasked(plan: Callable[[str], Plan], runner: Make) -> None:
    found = plan(PINN.format(used="u_x"))
    assert found.status == "unproven" and "create_graph=True" in found.message
    made, kept = found.options
    assert [o.candidate.kind for o in (made, kept)] == ["create_graph", "second_backward"]
    (text,) = made.sources.values()
    assert "torch.autograd.grad(u.sum(), x, create_graph=True)[0]" in text
    assert printed(runner(text)) != pytest.approx(
        printed(runner(next(iter(kept.sources.values())))), rel=1e-3
    )


def test_a_gradient_that_the_loss_does_not_hold_needs_no_graph(plan: Callable[[str], Plan]) -> None:
    found = plan(PINN.format(used="u_x.detach()"))
    assert (found.status, [c.kind for c in found.chosen]) == ("proven", ["second_backward"])


def test_a_pair_of_states_is_detached_where_it_goes_on(plan: Callable[[str], Plan]) -> None:
    found = plan(
        "import torch\n\n\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.rnn = torch.nn.LSTM(1, 2)\n"
        "        self.state = (torch.zeros(1, 1, 2), torch.zeros(1, 1, 2))\n\n"
        "    def forward(self, x):\n"
        "        out, self.state = self.rnn(x, self.state)\n"
        "        return out.sum()\n\n\n"
        "net = Net()\n"
        "opt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for x in torch.ones(3, 2, 1, 1):\n"
        "    opt.zero_grad()\n"
        "    net(x).backward(retain_graph=True)\n"
        "    opt.step()\n"
    )
    assert found.status == "unproven" and "ambiguous" in found.message
    (text,) = found.options[0].sources.values()
    assert "self.rnn(x, tuple(s.detach() for s in self.state))" in text
