"""Second backwards, raised by the installed torch: where the first was, what is shared, and what to change."""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from broken_programs import fail

from gradmend.capture.graph import calls as graph_calls
from gradmend.capture.hooks import backward_calls
from gradmend.capture.sites import raw_from, raw_here, resolve
from gradmend.model import Conflict, Site
from gradmend.story.failures import diagnose
from gradmend.story.failures.explain import from_text

told: list[Conflict] = []


@pytest.fixture(autouse=True)
def armed() -> Iterator[None]:
    told.clear()
    backward_calls.forget()

    def failed(call: Any, exc: BaseException, roots: Any) -> None:
        conflict = diagnose(exc, history=backward_calls.history, roots=roots, at=call.site)
        assert conflict is not None
        told.append(conflict)

    backward_calls.arm(failed)
    yield
    backward_calls.disarm()
    backward_calls.forget()


class ledger(torch.autograd.graph.saved_tensors_hooks):
    """Saves as the ledger takes them: the line at pack, the node at unpack."""

    def __init__(self) -> None:
        super().__init__(self.pack, self.unpack)

    @staticmethod
    def pack(t: torch.Tensor) -> tuple[Any, torch.Tensor]:
        return raw_from(sys._getframe(1)), t

    @staticmethod
    def unpack(handle: tuple[Any, torch.Tensor]) -> torch.Tensor:
        graph_calls.visit(torch._C._current_autograd_node()._sequence_nr(), handle[0])
        return handle[1]


HEAD = """
import torch
torch.manual_seed(0)
u, v = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
x = torch.randn(5, 3)
"""

CARRIED = (
    HEAD
    + """
h = torch.zeros(5, 3)
for step in range(3):
    h = torch.tanh(x @ u + h @ v)  # made
    loss = h.square().mean()
    loss.backward()  # <- here
"""
)

BEFORE = (
    HEAD
    + """
adv = x @ u
adv = (adv - adv.mean()) / (adv.std() + 1e-8)  # made
for epoch in range(3):
    loss = ((x @ v).exp() * adv).mean()
    loss.backward()  # <- here
"""
)

SHARED = (
    HEAD
    + """
fake = torch.tanh(x @ u)  # made
other = (x @ v).exp().mean()
other.backward()
d_loss = (fake @ v).square().mean()
d_loss.backward()  # first
g_loss = fake.exp().mean()
g_loss.backward()  # <- here
"""
)

TWICE = (
    HEAD
    + """
loss = (x @ u).exp().mean()
loss.backward()  # first
loss.backward()  # <- here
"""
)


def lines(file: str, mark: str) -> list[int]:
    return [n for n, text in enumerate(linecache.getlines(file), 1) if f"# {mark}" in text]


def run(tmp_path: Path, program: str, hooks: bool) -> tuple[Conflict, list[int], str, int]:
    if hooks:
        with ledger():
            exc, file, line = fail(tmp_path, program)
    else:
        exc, file, line = fail(tmp_path, program)
    assert "second time" in str(exc)
    (conflict,) = told
    assert conflict.rule == "GM131" and conflict.kind == "error"
    assert {c.file for c in conflict.culprits} == {file}
    return conflict, [c.line for c in conflict.culprits], file, line


def test_state_carried_over_from_the_iteration_before(tmp_path: Path) -> None:
    conflict, where, file, line = run(tmp_path, CARRIED, hooks=True)
    assert where == [*lines(file, "made"), line]
    assert conflict.message.startswith("this backward goes into the iteration before: `h` (made at line")
    assert conflict.help == ("cut it off where it is carried over: `h = h.detach()`",)
    assert conflict.backward is not None and conflict.backward.line == line


def test_a_part_made_before_the_loop(tmp_path: Path) -> None:
    conflict, where, file, line = run(tmp_path, BEFORE, hooks=True)
    assert where == [*lines(file, "made"), line]
    assert "was made before the loop on line" in conflict.message and "`adv`" in conflict.message
    assert "`adv = adv.detach()`" in conflict.help[0] and "inside the loop" in conflict.help[1]


def test_a_part_of_what_is_carried_over_goes_by_its_name(tmp_path: Path) -> None:
    program = CARRIED.replace("h = torch.tanh(x @ u + h @ v)", "h = 0.9 * h + torch.tanh(x @ u)")
    conflict, where, file, line = run(tmp_path, program, hooks=True)
    assert where == [*lines(file, "made"), line]
    assert conflict.help == ("cut it off where it is carried over: `h = h.detach()`",)


def test_a_part_made_by_a_constructor_goes_by_its_own_name(tmp_path: Path) -> None:
    program = (
        HEAD
        + """
class Net:
    def __init__(self):
        self.build()

    def build(self):
        self.bias = torch.tanh(u)  # made

net = Net()
for epoch in range(3):
    loss = (x @ net.bias).exp().mean()
    loss.backward()  # <- here
"""
    )
    conflict, where, file, line = run(tmp_path, program, hooks=True)
    assert where == [*lines(file, "made"), line]
    assert conflict.message.startswith("`self.bias` (made at line")
    assert "`self.bias = self.bias.detach()`" in conflict.help[0]


def test_two_losses_share_a_part(tmp_path: Path) -> None:
    """The backward in between, which does not touch the shared part, is not taken for the first."""
    conflict, where, file, line = run(tmp_path, SHARED, hooks=True)
    (first,) = lines(file, "first")
    assert where == [*lines(file, "made"), line, first]
    assert "`fake` (made at line" in conflict.message
    assert f"the first backward through it was at line {first}" in conflict.notes
    assert any(f"(at line {first}) `retain_graph=True`" in h for h in conflict.help)
    assert any("`fake.detach()`" in h for h in conflict.help)


@pytest.mark.parametrize("hooks", [True, False])
def test_the_same_loss_twice(tmp_path: Path, hooks: bool) -> None:
    conflict, where, file, line = run(tmp_path, TWICE, hooks)
    assert where[-2:] == [line, *lines(file, "first")]
    assert "starts from a loss whose graph" in conflict.message
    assert any("retain_graph=True" in h for h in conflict.help)


@pytest.mark.parametrize("program", [CARRIED, BEFORE])
def test_without_saves_the_backward_line_is_still_sure(tmp_path: Path, program: str) -> None:
    conflict, where, _, line = run(tmp_path, program, hooks=False)
    assert where == [line]
    assert "this line runs backward again" in conflict.message
    assert any("detach()" in h for h in conflict.help)


def test_without_saves_several_firsts_are_said_to_be_several(tmp_path: Path) -> None:
    conflict, where, file, line = run(tmp_path, SHARED, hooks=False)
    (first,) = lines(file, "first")
    assert where[0] == line and first in where
    assert any("was one of these: " in n and f"at line {first}" in n for n in conflict.notes)


def test_a_backward_before_the_shared_part_was_made_is_no_candidate(tmp_path: Path) -> None:
    program = SHARED.replace("fake = torch.tanh(x @ u)  # made\n", "").replace(
        "d_loss =", "fake = torch.tanh(x @ u)  # made\nd_loss ="
    )
    _, where, file, line = run(tmp_path, program, hooks=False)
    assert where == [line, *lines(file, "first")]


def test_anomaly_mode_tells_the_line_that_made_the_shared_part(tmp_path: Path) -> None:
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        _, where, file, line = run(tmp_path, BEFORE, hooks=False)
    assert where == [*lines(file, "made"), line]


def test_a_part_made_in_a_function_is_named_where_it_is_carried(tmp_path: Path) -> None:
    program = (
        HEAD
        + """
def cell(x, state):
    return torch.tanh(x @ u + state @ v)  # made

def train():
    hidden = torch.zeros(5, 3)
    for step in range(3):
        hidden = cell(x, hidden)
        hidden.square().mean().backward()  # <- here

train()
"""
    )
    conflict, where, file, line = run(tmp_path, program, hooks=True)
    assert where == [*lines(file, "made"), line]
    assert conflict.help == ("cut it off where it is carried over: `hidden = hidden.detach()`",)


@pytest.mark.parametrize("hooks", [True, False])
def test_a_running_total(tmp_path: Path, hooks: bool) -> None:
    program = (
        HEAD
        + """
total = 0
for step in range(3):
    loss = (x @ u).exp().mean()
    total = total + loss
    total.backward()  # <- here
"""
    )
    conflict, where, _, line = run(tmp_path, program, hooks)
    assert where[-1] == line
    assert "a total that contains an earlier loss" in conflict.message
    assert any("on the new loss alone" in h for h in conflict.help)


def test_state_of_an_lstm_is_named(tmp_path: Path) -> None:
    program = (
        HEAD
        + """
rnn = torch.nn.LSTM(3, 3)
h, c = torch.zeros(1, 3), torch.zeros(1, 3)
for step in range(3):
    out, (h, c) = rnn(x, (h, c))  # made
    out.square().mean().backward()  # <- here
"""
    )
    conflict, where, file, line = run(tmp_path, program, hooks=True)
    assert where == [*lines(file, "made"), line]
    assert conflict.help == ("cut it off where it is carried over: `h, c = h.detach(), c.detach()`",)
    exec(program.replace("    out, (h", "    h, c = h.detach(), c.detach()\n    out, (h"), {})


def test_state_of_an_lstm_kept_as_a_pair(tmp_path: Path) -> None:
    program = (
        HEAD
        + """
lstm = torch.nn.LSTM(3, 3)
state = (torch.zeros(1, 3), torch.zeros(1, 3))
for step in range(3):
    out, state = lstm(x, state)  # made
    out.square().mean().backward()  # <- here
"""
    )
    conflict, *_ = run(tmp_path, program, hooks=True)
    cut = "state = tuple(t.detach() for t in state)"
    assert conflict.help == (f"cut it off where it is carried over: `{cut}`",)
    exec(program.replace("    out, state", f"    {cut}\n    out, state"), {})


def test_a_custom_function_and_autograd_grad(tmp_path: Path) -> None:
    program = (
        HEAD
        + """
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.save_for_backward(t)
        return t * 2
    @staticmethod
    def backward(ctx, g):
        (t,) = ctx.saved_tensors
        return g * 2
y = Twice.apply(x @ u)
torch.autograd.grad(y.sum(), u)  # first
(y * 3).sum().backward()  # <- here
"""
    )
    conflict, where, file, line = run(tmp_path, program, hooks=False)
    assert where == [line, *lines(file, "first")]
    assert "the result of `Twice`" in conflict.message


def test_two_losses_made_before_either_backward(tmp_path: Path) -> None:
    """The failing loss is older than the first one's root: only the Saves tell which nodes it ran itself."""
    program = (
        HEAD
        + """
h = torch.tanh(x @ u)  # made
b = h.exp().mean()
a = (h * h).sin().mean()
a.backward()  # first
b.backward()  # <- here
"""
    )
    conflict, where, file, line = run(tmp_path, program, hooks=True)
    assert where == [*lines(file, "made"), line, *lines(file, "first")]
    assert "`h` (made at" in conflict.message
    told.clear()
    conflict, where, file, line = run(tmp_path, program, hooks=False)
    assert where == [line, *lines(file, "first")]
    assert "a part of the graph" in conflict.message


def test_a_creation_site_given_by_the_caller_is_used() -> None:
    u = torch.ones(3, requires_grad=True)
    h = u.exp()
    site = resolve(raw_here())
    h.sum().backward()
    try:
        (h * 2).sum().backward()
    except RuntimeError as exc:
        error = exc
    seen = []

    def creation(node: Any) -> Site:
        seen.append(node.name())
        return site

    roots = [(h * 2).sum()]
    conflict = diagnose(error, history=backward_calls.history, roots=roots, creation_site=creation)
    assert conflict is not None and seen == ["ExpBackward0"]
    assert site.user is not None
    assert conflict.culprits[0].line == site.user.line


@pytest.mark.parametrize(("program", "first"), [(CARRIED, "carried over"), (SHARED, "two losses")])
def test_from_the_traceback_alone(tmp_path: Path, program: str, first: str) -> None:
    """With nothing recorded, all ways to get there are told; a loop around the line puts carried state first."""
    backward_calls.disarm()
    exc, file, line = fail(tmp_path, program)
    conflict = from_text("".join(traceback.format_exception(exc)))
    assert conflict is not None and conflict.rule == "GM131"
    assert [(c.file, c.line) for c in conflict.culprits] == [(file, line)]
    assert first in conflict.help[0] and len(conflict.help) == 3


def test_asking_a_node_for_what_was_freed(tmp_path: Path) -> None:
    program = HEAD + "\ny = x @ u\nz = y.exp()\nz.sum().backward()\nz.grad_fn._saved_result  # <- here\n"
    exc, file, line = fail(tmp_path, program)
    conflict = diagnose(exc)
    assert conflict is not None and conflict.rule == "GM131"
    assert "asks a node for a tensor" in conflict.message
    assert [(c.file, c.line) for c in conflict.culprits] == [(file, line)]


def test_the_advice_is_true(tmp_path: Path) -> None:
    """Each program runs once the change that its story names is made."""
    fixed = [
        CARRIED.replace("    h = torch", "    h = h.detach()\n    h = torch"),
        BEFORE.replace("for epoch", "adv = adv.detach()\nfor epoch"),
        SHARED.replace("d_loss.backward()", "d_loss.backward(retain_graph=True)"),
        SHARED.replace("d_loss.backward()  # first", "").replace(
            "g_loss.backward()", "(d_loss + g_loss).backward()"
        ),
        SHARED.replace("(fake @ v)", "(fake.detach() @ v)"),
        TWICE.replace("backward()  # first", "backward(retain_graph=True)"),
    ]
    for program in fixed:
        exec(program, {})
    assert not told
