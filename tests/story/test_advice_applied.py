"""A help is followed to the letter, with no trial before: the program it makes must have the healed gradient.

Rows with an empty edit are programs in which the line's obvious edit is wrong; there the story must not propose one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gradmend
from gradmend.model import Conflict
from gradmend.story.advice import advised

HEAD = (
    "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
    "x = torch.linspace(-1, 1, 16).reshape(4, 4).requires_grad_()\n"
)

# (what it is about, program, the edit)
ROWS = [
    ("a fresh name", "y = x.exp()\ny *= 2\ny.sum().backward()", "write line 6 as `y = y * 2`"),
    (
        "an activation given another name",
        "act = nn.Hardtanh(0, 0.6, inplace=True)\nh = x.sigmoid()\ny = act(h)\n(y * y).sum().backward()",
        "write line 7 as `y = act(h.clone())`",
    ),
    (
        "its input is read again, changed",
        "act = nn.Hardtanh(0, 0.6, inplace=True)\nh = x.sigmoid()\ny = act(h)\n(y * h).sum().backward()",
        "write line 6 as `h = x.sigmoid().clone()`",
    ),
    (
        "inside Sequential",
        "net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.ELU(0.5, inplace=True))\nh = net(x)\n"
        "(h * x).sum().backward()",
        "write `nn.ELU(0.5, inplace=True)` on line 5 as `nn.ELU(0.5, inplace=False)`",
    ),
    (
        "two alike inside Sequential",
        "net = nn.Sequential(nn.ELU(inplace=True), nn.Tanh(), nn.ELU(inplace=True))\nh = net(x * 2)\n"
        "(h * x).sum().backward()",
        "",
    ),
    (
        "a loop's name, the list is read again",
        "hs = [x.exp(), x.tanh()]\nfor s in reversed(hs):\n    s += x\nsum((s * s).sum() for s in hs).backward()",
        "write line 5 as `hs = [x.exp(), x.tanh().clone()]`",
    ),
    (
        "rows kept while the line runs again",
        "h, rows = x.exp(), []\nfor t in range(3):\n    h = h.sigmoid()\n    rows.append(h)\n    h += 1\n"
        "sum(r.sum() for r in rows).backward()",
        "write line 7 as `h = h.sigmoid().clone()`",
    ),
    (
        "an argument of a function",
        "def shift(t):\n    t += 1\n    return t\ny = x.exp()\nz = shift(y)\nz.sum().backward()",
        "write line 9 as `z = shift(y.clone())`",
    ),
    (
        "a function's argument that its caller reads",
        "def shift(t):\n    t += 1\ny = x.exp()\nshift(y)\n(y * y).sum().backward()",
        "write line 7 as `y = x.exp().clone()`",
    ),
    (
        "a scripted function",
        "@torch.jit.script\ndef scale(t, s: float):\n    t *= s\n    return t\ny = x.exp()\nz = scale(y, 2.0)\nz.sum().backward()",
        "write line 10 as `z = scale(y.clone(), 2.0)`",
    ),
    (
        "a row made of another one, in one line",
        "h = torch.ones(2, 4)\nfor t in range(4):\n    h[t % 2] = h[(t + 1) % 2] * x[t]\nh.pow(2).sum().backward()",
        "write line 7 as `h = h.select_scatter(h[(t + 1) % 2] * x[t], 0, t % 2)`",
    ),
    (
        "a second name",
        "y = x.exp()\nz = y\ny *= 2\n(z * 1.5).sum().backward()",
        "write line 5 as `y = x.exp().clone()`",
    ),
    (
        "under no_grad a new tensor has no history",
        "y = x.exp()\nwith torch.no_grad():\n    y *= 2\ny.sum().backward()",
        "",
    ),
    (
        "an in-place op that saves",
        "h = {'a': x * 1}\nv = h['a']\nv.exp_()\nv.mul_(2)\nh['a'].sum().backward()",
        "",
    ),
    (
        "half precision stays",
        "y = x.half().exp()\ny += x\ny.sum().backward()",
        "put `y = y.clone()` before line 6",
    ),
    (
        "an update by hand",
        "w = torch.ones(4, requires_grad=True)\nloss = (w * x).pow(2).sum()\nwith torch.no_grad():\n    w -= 0.1\nloss.backward()",
        "move lines 7-8 below the backward() on line 9",
    ),
    (
        "a whole block moves",
        "w = torch.ones(4, requires_grad=True)\nema = torch.zeros(4)\nloss = (w * x).pow(2).sum()\n"
        "with torch.no_grad():\n    ema.mul_(0.9).add_(w, alpha=0.1)\n    w.copy_(ema)\nprint('ema')\nloss.backward()",
        "move lines 8-10 below the backward() on line 12",
    ),
    (
        "an update by its gradient, below another backward",
        "w = torch.ones(4, requires_grad=True)\na, b = (w * x).exp().sum(), (w * x).pow(2).sum()\na.backward()\n"
        "with torch.no_grad():\n    w -= 0.1 * w.grad\nb.backward()",
        "write line 6 as `a, b = (w * x).exp().sum(), (w.clone() * x).pow(2).sum()`",
    ),
]


def applied(text: str, edit: str) -> str:
    """What a reader does who follows the help word by word."""
    lines = text.split("\n")
    if found := re.fullmatch(r"write line (\d+) as `(.*)`", edit):
        n = int(found[1]) - 1
        lines[n] = lines[n][: len(lines[n]) - len(lines[n].lstrip())] + found[2]
    elif found := re.fullmatch(r"put `(.*)` before line (\d+)", edit):
        n = int(found[2]) - 1
        lines.insert(n, lines[n][: len(lines[n]) - len(lines[n].lstrip())] + found[1])
    elif found := re.fullmatch(r"write `(.*)` on line (\d+) as `(.*)`", edit):
        n = int(found[2]) - 1
        assert found[1] in lines[n]
        lines[n] = lines[n].replace(found[1], found[3])
    elif found := re.fullmatch(r"move lines? (\d+)(?:-(\d+))? below the backward\(\) on line (\d+)", edit):
        first, last, goal = int(found[1]) - 1, int(found[2] or found[1]), int(found[3])
        lines = lines[:first] + lines[last:goal] + lines[first:last] + lines[goal:]
    else:
        raise AssertionError(f"nobody could follow {edit!r}")
    return "\n".join(lines)


_programs: list[dict[str, Any]] = []


@pytest.fixture(autouse=True)
def programs_end() -> Iterator[None]:
    """torch.jit remembers what it scripted, and with it a program's names: a graph of it would live on."""
    yield
    while _programs:
        _programs.pop().clear()


def ran(file: Path, text: str) -> dict[str, Any]:
    file.write_text(text)
    names: dict[str, Any] = {"__name__": "__main__"}
    _programs.append(names)
    exec(compile(text, str(file), "exec"), names)
    return names


def gradients(names: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {
        n: t.grad
        for n, t in names.items()
        if isinstance(t, torch.Tensor) and t.is_leaf and t.grad is not None
    }


def stopped(file: Path, text: str) -> Conflict:
    with pytest.raises(gradmend.ConflictError) as caught, gradmend.watch():
        ran(file, text)
    return advised(caught.value.conflict)


@pytest.mark.parametrize(("about", "program", "edit"), ROWS, ids=[r[0] for r in ROWS])
def test_the_edit_makes_the_program_right(tmp_path: Path, about: str, program: str, edit: str) -> None:
    text = HEAD + program + "\n"
    conflict = stopped(tmp_path / "program.py", text)
    assert conflict.edit == edit
    if not edit:
        return
    with gradmend.heal():
        right = gradients(ran(tmp_path / "healed.py", text))
    edited = applied(text, edit)
    try:
        found = gradients(ran(tmp_path / "edited.py", edited))
    except RuntimeError:  # another line of the same program: the edit is right, and one of several
        with gradmend.heal():
            found = gradients(ran(tmp_path / "edited.py", edited))
        assert stopped(tmp_path / "edited.py", edited).saved != conflict.saved
    assert found.keys() == right.keys()
    for name in right:
        torch.testing.assert_close(found[name], right[name])


def test_an_optimizer_that_stepped_in_between_leaves_two_meanings(tmp_path: Path) -> None:
    program = (
        "net = nn.Linear(4, 1)\nsgd = torch.optim.SGD(net.parameters(), lr=0.1)\na, b = net(x).exp().mean(), net(x.sin()).mean()\n"
        "a.backward()\nsgd.step()\nb.backward()\n"
    )
    conflict = stopped(tmp_path / "program.py", HEAD + program)
    assert not conflict.edit
    assert conflict.help[0] == (
        "two programs can be meant: compute the forward (line 7) again between line 9 and line 10, at the new parameters; or "
        "call the backward() of line 10 before the step on line 9, which then applies the gradients of both backward() calls, "
        "unless zero_grad() stands between them or each has its `inputs=`"
    )


def test_memory_that_numpy_shares_is_told_by_both_meanings(tmp_path: Path) -> None:
    program = "y = x.exp()\na = y.detach().numpy()\na[0] = 5\ny.sum().backward()\n"
    conflict = stopped(tmp_path / "program.py", HEAD + program)
    assert not conflict.edit and conflict.help[0].startswith("if only the array should change")
