"""What fix writes is what a reviewer would take: each program with the lines that its diff must, and must not, have."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradmend.fix.judging.compare import effect
from gradmend.fix.search import choices
from gradmend.fix.search.outcome import Plan

HEAD = "import torch, torch.nn as nn, torch.nn.functional as F\ntorch.manual_seed(0)\n"

# name -> (program, lines added, lines removed)
PROGRAMS = {
    "prediction_used_after_a_step": (
        """
d, g = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)), nn.Linear(3, 2)
od, og = torch.optim.Adam(d.parameters(), 1e-2), torch.optim.Adam(g.parameters(), 1e-2)
for _ in range(3):
    fake = g(torch.randn(6, 3))
    ones = torch.ones(6, 1)
    score = d(fake)
    d_loss = F.softplus(score).mean() + F.softplus(-d(torch.randn(6, 2))).mean()
    od.zero_grad()
    d_loss.backward(retain_graph=True)
    od.step()
    g_loss = F.binary_cross_entropy_with_logits(score, ones)
    og.zero_grad()
    g_loss.backward()
    og.step()
""",
        ["    score = d(fake)"],
        [],
    ),
    "forward_with_running_statistics_made_once": (
        """
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), 0.1)
x = torch.randn(16, 4)
out = net(x)
for _ in range(3):
    opt.zero_grad()
    loss = (out ** 2).mean()
    loss.backward(retain_graph=True)
    opt.step()
""",
        ["    out = net(x)"],
        ["out = net(x)"],
    ),
    "two_steps_in_one_iteration": (
        """
net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
opt = torch.optim.SGD(net.parameters(), 0.1)
x = torch.randn(8, 4)
for _ in range(1):
    out = net(x)
    first = out.mean()
    second = out.pow(2).mean()
    opt.zero_grad()
    first.backward(retain_graph=True)
    opt.step()
    second.backward()
    opt.step()
""",
        ["    out = net(x)", "    second = out.pow(2).mean()"],
        [],
    ),
    "actor_through_two_critics": (
        """
actor, q1, q2 = nn.Linear(3, 2), nn.Linear(2, 1), nn.Linear(2, 1)
oa, o1, o2 = (torch.optim.Adam(m.parameters(), 1e-2) for m in (actor, q1, q2))
for _ in range(2):
    state, action, goal = torch.randn(6, 3), torch.randn(6, 2), torch.randn(6, 1)
    loss1, loss2 = F.mse_loss(q1(action), goal), F.mse_loss(q2(action), goal)
    chosen = torch.tanh(actor(state))
    actor_loss = -torch.min(q1(chosen), q2(chosen)).mean()

    # critics
    o1.zero_grad()
    loss1.backward()
    o1.step()
    o2.zero_grad()
    loss2.backward()
    o2.step()
    oa.zero_grad()
    actor_loss.backward()
    nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
    oa.step()
""",
        [
            "    oa.zero_grad()",
            "    actor_loss.backward()",
            "    nn.utils.clip_grad_norm_(actor.parameters(), 1.0)",
            "    oa.step()",
        ],
        [
            "    oa.zero_grad()",
            "    actor_loss.backward()",
            "    nn.utils.clip_grad_norm_(actor.parameters(), 1.0)",
            "    oa.step()",
        ],
    ),
    "prediction_outside_of_the_closure": (
        """
net = nn.Linear(3, 1)
x, y = torch.randn(16, 3), torch.randn(16, 1)
opt = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4)
pred = net(x)

def closure():
    opt.zero_grad()
    loss = ((pred - y) ** 2).mean()
    loss.backward()
    return loss

opt.step(closure)
""",
        ["    pred = net(x)"],
        ["pred = net(x)"],
    ),
    "prediction_outside_of_the_loop": (
        """
net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
opt = torch.optim.Adam(net.parameters(), 1e-2)
x, y = torch.randn(10, 3), torch.randint(0, 2, (10,))
pred = net(x)
for _ in range(3):
    opt.zero_grad()
    loss = F.cross_entropy(pred, y)
    loss.backward(retain_graph=True)
    opt.step()
""",
        ["    pred = net(x)"],
        ["pred = net(x)"],
    ),
    "product_outside_of_the_closure": (
        """
A, b = torch.randn(10, 3), torch.randn(10)
w, s = nn.Parameter(torch.randn(3)), nn.Parameter(torch.ones(3))
opt = torch.optim.LBFGS([w], max_iter=4)
feat = (A * s) @ w
def closure():
    opt.zero_grad()
    loss = (feat - b).pow(2).mean()
    loss.backward(retain_graph=True)
    return loss
for _ in range(3):
    opt.step(closure)
""",
        ["    feat = (A * s) @ w"],
        ["feat = (A * s) @ w"],
    ),
    "two_lines_outside_of_the_loop": (
        """
A, b = torch.randn(10, 3), torch.randn(10)
w = nn.Parameter(torch.randn(3))
opt = torch.optim.SGD([w], 0.1)
scaled = A * w * w
feat = scaled.sum(1)
for _ in range(4):
    opt.zero_grad()
    loss = (feat - b).pow(2).mean()
    loss.backward(retain_graph=True)
    opt.step()
""",
        ["    scaled = A * w * w", "    feat = scaled.sum(1)"],
        ["scaled = A * w * w", "feat = scaled.sum(1)"],
    ),
    "update_by_hand_of_a_forward_outside_of_the_loop": (
        """
A, b = torch.randn(10, 3), torch.randn(10)
w = nn.Parameter(torch.randn(3))
feat = (A * w) @ w
for _ in range(4):
    w.grad = None
    loss = (feat - b).pow(2).mean()
    loss.backward(retain_graph=True)
    with torch.no_grad():
        w -= 0.1 * w.grad
""",
        ["    feat = (A * w) @ w"],
        ["feat = (A * w) @ w"],
    ),
    "a_compiled_function": (
        """
net = nn.Linear(4, 4)
@torch.compile(backend="aot_eager")
def act(h):
    return torch.exp(-h.abs()) * h
h = net(torch.randn(5, 4))
y = act(h)
h += 1
(y.sum() + h.pow(2).sum()).backward()
""",
        ["h = h + 1"],
        ["h += 1"],
    ),
    "jagged_rows": (
        """
net = nn.Linear(4, 4)
rows = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged, requires_grad=True)
y = torch.cat(net(rows).unbind()).exp()
y += 1
y.sum().backward()
""",
        ["y = y + 1"],
        ["y += 1"],
    ),
    "rows_unpacked_and_written": (
        """
rate = torch.tensor(0.3, requires_grad=True)
state = torch.zeros(5, 2)
state[0, 0] = 1.0
for t in range(1, 5):
    s, i = state[t - 1]
    state[t, 0] = s * rate
    state[t, 1] = i + s
state.sum().backward()
""",
        ["    s, i = state[t - 1].clone()"],
        ["    s, i = state[t - 1]"],
    ),
    "hook_style_weight_norm": (
        """
net = torch.nn.utils.weight_norm(nn.Linear(4, 8))
x = torch.randn(16, 4)
mu, log_scale = net(x).chunk(2, dim=-1)
scale = log_scale.mul_(0.5).tanh_().add(1.0)
loss = ((scale * x + mu) ** 2).mean() - scale.log().sum(1).mean()
loss.backward()
""",
        ["scale = log_scale.mul(0.5).tanh().add(1.0)"],
        ["scale = log_scale.mul_(0.5).tanh_().add(1.0)"],
    ),
    "tabs_and_spaces": (
        "class N(nn.Module):\n    def forward(self, x):\n        for i in range(2):\n        \tif i == 0:\n        \t\ty = x.exp()\n"
        "        \telse:\n\t            y += 1\n        return y\n\nx = torch.ones(2, requires_grad=True)\nN()(x).sum().backward()\n",
        ["\t            y = y + 1"],
        ["\t            y += 1"],
    ),
    "update_by_hand": (
        """
w = torch.randn(3, requires_grad=True)
for _ in range(2):
    loss = (w ** 2).sum()
    loss.backward()
    w -= 0.1 * w.grad
    w.grad.zero_()
""",
        ["    with torch.no_grad():", "        w -= 0.1 * w.grad", "        w.grad.zero_()"],
        ["    w -= 0.1 * w.grad", "    w.grad.zero_()"],
    ),
    "row_read_then_written": (
        """
w = torch.randn(4, 4, requires_grad=True)
h = torch.zeros(5, 4)
h[0] = 1
for t in range(1, 5):
    h[t] = torch.sigmoid(h[t - 1] @ w)
    h[t] *= 0.9
h.pow(2).sum().backward()
""",
        ["    h[t] = torch.sigmoid(h[t - 1].clone() @ w)"],
        ["    h[t] = torch.sigmoid(h[t - 1] @ w)"],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_diff(name: str, plan: Callable[[str], Plan], tmp_path: Path) -> None:
    source, added, removed = PROGRAMS[name]
    found = plan(HEAD + source)
    assert found.status == "proven", (
        found.message,
        [(t.candidate.title, t.verdict.why) for t in found.tried],
    )
    file = str(tmp_path / "main.py")
    new = found.original[file].as_typed(found.sources[file])
    diff = list(difflib.ndiff((HEAD + source).splitlines(), new.splitlines()))
    assert [line[2:] for line in diff if line.startswith("+ ")] == added
    assert [line[2:] for line in diff if line.startswith("- ")] == removed


FROZEN = {
    "once": """
A, b = torch.randn(10, 3), torch.randn(10)
w = nn.Parameter(torch.randn(3))
opt = torch.optim.SGD([w], 0.1)
feat = (A * w) @ w
for _ in range(4):
    opt.zero_grad()
    loss = (feat - b).pow(2).mean()
    loss.backward(retain_graph=True)
    opt.step()
""",
    "carried": """
w = nn.Parameter(torch.randn(3, 3))
opt = torch.optim.SGD([w], 0.1)
h = torch.randn(2, 3)
for _ in range(3):
    h = torch.tanh(h @ w)
    loss = h.pow(2).mean()
    opt.zero_grad()
    loss.backward(retain_graph=True)
    opt.step()
""",
}


@pytest.mark.parametrize("way", FROZEN)
def test_a_copy_that_hides_every_update_is_only_an_option(way: str, plan: Callable[[str], Plan]) -> None:
    found = plan(HEAD + FROZEN[way])
    assert not any(".clone()" in text for text in found.sources.values())
    assert found.status == ("proven" if way == "once" else "unproven")
    copies = [o for o in found.options if o.candidate.kind == "clone_save"]
    assert all(o.candidate.note == choices.FROZEN[way] and not o.proven for o in copies)
    if way == "carried":
        assert any(".detach()" in text for o in found.options for text in o.sources.values()) and copies


def test_a_total_that_goes_back_again_is_cut_after_the_update(plan: Callable[[str], Plan]) -> None:
    program = """
net = nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), 0.01)
total = 0
for _ in range(3):
    loss = net(torch.randn(5, 3)).pow(2).mean()
    total += loss
    opt.zero_grad()
    total.backward()
    opt.step()
"""
    found = plan(HEAD + program)
    assert found.status == "proven" and found.basis == "cut"
    assert not any(t.candidate.kind == "second_backward" for t in found.tried)
    (text,) = found.sources.values()
    assert text == HEAD + program + "    total = total.detach()\n"


def test_the_edit_that_changes_the_forward_is_an_option_with_its_effect(plan: Callable[[str], Plan]) -> None:
    program = """
lin = nn.Linear(4, 4)
x = torch.randn(2, 4)
h = torch.relu(lin(x))
kept = h
h += x
((kept ** 2).sum() + h.sum()).backward()
"""
    found = plan(HEAD + program)
    assert found.status == "proven" and "torch.relu(lin(x)).clone()" in next(iter(found.sources.values()))
    (option,) = [o for o in found.options if o.candidate.kind == "rebind"]
    assert "h = h + x" in next(iter(option.sources.values())) and "the loss of backward call 1" in option.told


def test_a_value_made_once_may_be_cut_off(plan: Callable[[str], Plan]) -> None:
    program = """
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), 0.1)
x, adv = torch.randn(10, 4), torch.randn(10, 1)
policy = torch.distributions.Normal(net(x), 1.0)
old = policy.log_prob(x[:, :1])
for _ in range(3):
    ratio = (torch.distributions.Normal(net(x), 1.0).log_prob(x[:, :1]) - old).exp()
    loss = -(ratio * adv + 0.1 * net(x).pow(2) * (ratio - 1)).mean()
    opt.zero_grad()
    loss.backward(retain_graph=True)
    opt.step()
"""
    found = plan(HEAD + program)
    (option,) = [o for o in found.options if o.candidate.kind == "detach"]
    assert "old = policy.log_prob(x[:, :1]).detach()\n" in next(iter(option.sources.values()))
    assert not any(".detach()" in text for text in found.sources.values())


def test_a_gradient_that_is_all_but_gone_is_told() -> None:
    calls = [[{"roots": [np.ones(1)], "grads": {"w": np.full(3, size)}}] for size in (1.0, 0.002, 0.5, 0.0)]
    assert effect(calls[0], calls[1]).endswith("; the gradient norm of backward call 1 -99.8%")
    assert effect(calls[0], calls[2]) == "no loss of the compared calls changes"
    assert effect(calls[3], calls[3]).endswith("; all its gradients are zero to rounding: nothing is trained")


TIME = """
cell, head = nn.RNNCell(4, 8), nn.Linear(8, 1)
opt = torch.optim.SGD([*cell.parameters(), *head.parameters()], 0.01)
h, xs = torch.zeros(2, 8), torch.randn(4, 2, 4)
"""
MADE_BEFORE = """
for x in xs:
    h = cell(x, h)
for _ in range(3):
    opt.zero_grad()
    head(h).pow(2).mean().backward(retain_graph=True)
    opt.step()
"""
CARRIED = """
for x in xs:
    h = cell(x, h)
    opt.zero_grad()
    head(h).pow(2).mean().backward(retain_graph=True)
    opt.step()
"""


@pytest.mark.parametrize("loop", [MADE_BEFORE, CARRIED], ids=["made_before", "carried"])
def test_no_step_in_time_is_cut_off_from_its_parameters(loop: str, plan: Callable[[str], Plan]) -> None:
    found = plan(HEAD + TIME + loop)
    assert not any("cell(x, h).detach()" in text for o in found.options for text in o.sources.values())
    for option in found.options:
        if option.candidate.kind == "detach":
            assert "it cuts the gradient" in option.candidate.note


def test_parameters_that_get_no_gradient_any_more_are_told() -> None:
    one, none = np.ones(3), np.zeros(3)
    names = {"0": "cell.weight", "1": "cell.bias", "2": "head.weight"}
    before = [{"roots": [np.ones(1)], "grads": {"0": one, "1": one, "2": one}, "names": names}]
    after = [{"roots": [np.ones(1)], "grads": {"0": None, "1": none, "2": one}, "names": names}]
    assert effect(before, after).endswith("; no gradient reaches cell.weight and 1 more")
