"""A backward() that belongs to a later iteration than the forward it needs is told as that, by what carries the graph over."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import gradmend
import warm
from gradmend.api.explaining import words
from gradmend.model import Conflict
from gradmend.story.advice import advised

HEAD = (
    "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
    "w = nn.Parameter(torch.rand(3, 3))\nopt = torch.optim.SGD([w], 0.1)\nx = torch.rand(2, 3)\n"
)
LSTM = (
    "net = nn.LSTM(3, 5)\nopt = torch.optim.SGD(net.parameters(), 0.1)\n{first}\nfor _ in range(3):\n"
    "    out, state = net(x, state)\n    loss = out.sum()\n    loss.backward(retain_graph=True)\n    opt.step()\n"
)
PAIR = "`state = tuple(t.detach() for t in state)`"
# (what it is about, program, its first help)
ROWS = [
    (
        "a hidden state",
        "h = x\nfor _ in range(3):\n    h = torch.tanh(h @ w)\n    loss = h.sum()\n    loss.backward(retain_graph=True)\n    opt.step()\n",
        "cut it off where it is carried over, at the start of the loop on line 8: `h = h.detach()`",
    ),
    (
        "a state computed from what the parameter made; a number is no state",
        "h, total = x, 0.0\nfor _ in range(3):\n    z = x @ w @ w\n    h = torch.tanh(z + h)\n    loss = h.sum()\n    total += loss.item()\n"
        "    loss.backward(retain_graph=True)\n    opt.step()\n",
        "cut it off where it is carried over, at the start of the loop on line 8: `h = h.detach()`",
    ),
    (
        "a helper that does both",
        "def train(loss):\n    loss.backward(retain_graph=True)\n    opt.step()\nh = x\nfor _ in range(3):\n    h = torch.tanh(h @ w)\n"
        "    train(h.sum())\n",
        "cut it off where it is carried over, at the start of the loop on line 11: `h = h.detach()`",
    ),
    (
        "a product made once before the loop",
        "feat = x @ w @ w\nfor _ in range(3):\n    loss = feat.sum()\n    loss.backward(retain_graph=True)\n    opt.step()\n",
        "compute line 7 inside the loop on line 8, each time anew",
    ),
    (
        "a closure",
        "opt = torch.optim.LBFGS([w], max_iter=4)\nfeat = x @ w @ w\ndef closure():\n    opt.zero_grad()\n"
        "    loss = feat.pow(2).sum()\n    loss.backward(retain_graph=True)\n    return loss\nopt.step(closure)\n",
        "compute line 8 inside `closure`, each time anew",
    ),
    (
        "a pair",
        LSTM.format(first="state = (torch.zeros(1, 5), torch.zeros(1, 5))"),
        f"cut it off where it is carried over, at the start of the loop on line 10: {PAIR}",
    ),
    (
        "a pair that is None at first",
        LSTM.format(first="state = None"),
        f"cut it off where it is carried over, at the end of the loop on line 10: {PAIR}",
    ),
    (
        "None at first",
        LSTM.format(first="state = None").replace("LSTM", "GRU"),
        "cut it off where it is carried over, at the end of the loop on line 10: `state = state.detach()`",
    ),
]


def told(tmp_path: Path, program: str) -> Conflict:
    file = tmp_path / "program.py"
    file.write_text(HEAD + program)
    names: dict[str, Any] = {"__name__": "__main__"}
    with pytest.raises(gradmend.ConflictError) as caught, gradmend.watch():
        exec(compile(file.read_text(), str(file), "exec"), names)
    names.clear()
    return advised(caught.value.conflict)


@pytest.mark.parametrize(("about", "program", "help"), ROWS, ids=[r[0] for r in ROWS])
def test_the_help(tmp_path: Path, about: str, program: str, help: str) -> None:
    conflict = told(tmp_path, program)
    assert conflict.help[0].startswith(help) and not conflict.edit
    assert not any(".clone()" in line for line in conflict.help)
    later = "call" if about == "a closure" else "iteration"
    assert re.search(rf"of a later {later} still needs `(w|net\.\w+)`", conflict.message)
    assert advised(conflict) == conflict


@pytest.mark.parametrize("row", [r for r in ROWS if "carried over" in r[2]], ids=lambda r: r[0])
def test_the_help_helps(tmp_path: Path, row: tuple[str, str, str]) -> None:
    """Put where it says, the line makes plain PyTorch run."""
    _, program, help = row
    lines = (HEAD + program).splitlines()
    loop = next(i for i, line in enumerate(lines) if line.startswith("for "))
    at = loop + 1 if " start " in help else len(lines)
    lines.insert(at, "    " + help.split("`")[1])
    exec(compile("\n".join(lines), str(tmp_path / "mended.py"), "exec"), {"__name__": "__main__"})


def test_a_recurrent_layers_note_is_short(tmp_path: Path) -> None:
    told_of = told(tmp_path, LSTM.format(first="state = None"))
    assert told_of.why is not None
    assert told_of.why.startswith("a recurrent layer computes the gradient of its inputs from `net.weight_")


def test_callers_are_named_where_a_helper_steps_for_two_losses(tmp_path: Path) -> None:
    program = (
        "other, net = nn.Parameter(torch.rand(3)), nn.Linear(3, 1)\ndef step(opt, loss):\n    opt.zero_grad()\n    loss.backward()\n    opt.step()\n"
        "for _ in range(2):\n    actor = net(x * other).sum()\n    critic = net(x).sum()\n    step(torch.optim.SGD(net.parameters(), 0.1), critic)\n"
        "    step(torch.optim.SGD([other], 0.1), actor)\n"
    )
    conflict = told(tmp_path, program)
    assert "later" not in conflict.message
    assert "compute the forward (line 13) again between line 15 and line 16" in conflict.help[0]
    assert "call the backward() of line 16 before the step on line 15" in conflict.help[0]
    story = words(conflict)
    write, backward = (
        line for line in story.replace("\n           ", " ").splitlines() if "reached through" in line
    )
    assert "the write" in write and write.endswith("program.py:15")
    assert "backward()" in backward and backward.endswith("program.py:16")


def plain(tmp_path: Path, program: str, **env: str) -> str:
    file = tmp_path / "program.py"
    file.write_text(HEAD + program)
    run = warm.run([sys.executable, str(file)], env={**os.environ, **env}, timeout=300)
    assert run.returncode == 1
    return run.stderr


def test_the_recorder_and_a_printed_error_tell_it_too(tmp_path: Path) -> None:
    cell = (
        ROWS[0][1]
        .replace("torch.tanh(h @ w)", "cell(x, h)")
        .replace("h = x\n", "h = x\ncell = nn.RNNCell(3, 3)\n")
    )
    cell = cell.replace(
        "cell = nn.RNNCell(3, 3)\n",
        "cell = nn.RNNCell(3, 3)\nopt = torch.optim.SGD(cell.parameters(), 0.1)\n",
    )
    armed = " ".join(plain(tmp_path, cell, GRADMEND="1").split())
    assert (
        "SGD.step on line 14 changes `cell.weight_hh` in place, but backward() on line 13 of a later iteration"
        in armed
    )
    assert "at the start of the loop on line 10: `h = h.detach()`" in armed
    read = gradmend.explain(plain(tmp_path, cell, GRADMEND=""))
    assert "if `h` carries the graph over" in read and "`h = h.detach()`" in read


def test_a_step_before_the_other_loss_is_told_with_what_it_then_applies(tmp_path: Path) -> None:
    program = (
        "net = nn.Linear(3, 1)\nopt = torch.optim.SGD(net.parameters(), 0.1)\nz = nn.Parameter(x)\n"
        "a, b = net(z).pow(2).sum(), net(z.exp()).sum()\na.backward()\nopt.step()\nb.backward()\n"
    )
    for text in (
        plain(tmp_path, program, GRADMEND="1"),
        gradmend.explain(plain(tmp_path, program, GRADMEND="")),
    ):
        said = " ".join(text.split())
        assert "two programs can be meant" in said
        assert "which then applies the gradients of both backward() calls, unless zero_grad() stands" in said
        assert "call every backward()" not in said
