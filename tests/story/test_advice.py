"""The help of a story is an edit: each line below is told by the edit that makes its program right."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import gradmend
from gradmend.model import Conflict
from gradmend.story.advice import advised, prover

HEAD = "import torch\nx = torch.linspace(-1, 1, 16).reshape(4, 4).requires_grad_()\nw = torch.ones(4, 4, requires_grad=True)\n"

# (program, its help)
ROWS = [
    ("y = x.sigmoid()\ny += 1\ny.sum().backward()", "write line 5 as `y = y + 1`"),
    ("y = x.sigmoid()\ny[0] = 0\ny.sum().backward()", "put `y = y.clone()` before line 5"),
    ("y = x.softmax(-1)\ny[:, 0] = 0\ny.pow(2).sum().backward()", "put `y = y.clone()` before line 5"),
    ("y = x.sigmoid()\ny[x > 0] = 0\ny.sum().backward()", "write line 5 as `y = y.masked_fill(x > 0, 0)`"),
    ("y = x.sigmoid()\ny[:, 0] += 1\ny.sum().backward()", "put `y = y.clone()` before line 5"),
    ("y = x.sigmoid()\ny[:, 0].mul_(2)\ny.sum().backward()", "put `y = y.clone()` before line 5"),
    (
        "h = x * 2\ny = h**2\nh[0].add_(1)\n(y.sum() + h.sum()).backward()",
        "put `h = h.clone()` before line 6",
    ),
    (
        "h = x * 2\ny = h[0]**2\nh[0].add_(1)\n(y.sum() + h.sum()).backward()",
        "put `h = h.clone()` before line 6",
    ),
    ("h = x * 2\ny = h @ w\nh[0] = 1\n(y.sum() + h.sum()).backward()", "put `h = h.clone()` before line 6"),
    (
        "y = torch.relu(x)\nz = y.view(-1)\nz[3:] *= 2\ny.pow(2).sum().backward()",
        "write line 4 as `y = torch.relu(x).clone()`",
    ),
    (
        "loss = (w * x).pow(2).sum()\nwith torch.no_grad():\n    w -= 0.1\nloss.backward()",
        "move lines 5-6 below the backward() on line 7",
    ),
]


def told(tmp_path: Path, program: str) -> Conflict:
    file = tmp_path / "program.py"
    file.write_text(HEAD + program + "\n")
    with pytest.raises(gradmend.ConflictError) as caught, gradmend.watch():
        exec(compile(file.read_text(), str(file), "exec"), {"__name__": "__main__"})
    return caught.value.conflict


@pytest.mark.parametrize(("program", "help"), ROWS, ids=[r[0].splitlines()[-2] for r in ROWS])
def test_the_help_is_the_edit(tmp_path: Path, program: str, help: str) -> None:
    conflict = advised(told(tmp_path, program))
    assert conflict.help[0] == conflict.edit == help


def test_the_edit_of_one_line_gives_the_healed_gradient(tmp_path: Path) -> None:
    for program, help in ROWS[:1] + ROWS[3:4]:
        lines = (HEAD + program).splitlines()
        number, text = help.removeprefix("write line ").split(" as ")
        lines[int(number) - 1] = text.strip("`")
        fixed: dict[str, Any] = {}
        exec("\n".join(lines), fixed)
        healed: dict[str, Any] = {}
        with gradmend.heal():
            exec(HEAD + program, healed)
        assert torch.equal(fixed["x"].grad, healed["x"].grad)


def test_without_the_rewriter_python_reads_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conflict = told(tmp_path, ROWS[0][0])
    plain = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith(("libcst", "gradmend.fix")):
            raise ImportError(name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert advised(conflict).help[0] == "write line 5 as `y = y + 1`"


def test_the_words_are_the_users() -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught, gradmend.watch():
        h = x.sigmoid()
        h.mul_(2)
        h.sum().backward()
    story = str(caught.value)
    assert "changes `h` in place, but backward() on line" in story
    assert (
        "still needs `h` as" in story
        and "sigmoid computes the gradient of `x` from its output: grad * h * (1 - h)" in story
    )


def test_a_parameter_goes_by_its_path() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.critic = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
            self.optimizer = torch.optim.SGD(self.critic.parameters(), lr=0.1)

        def step(self) -> None:
            out = self.critic(torch.ones(4, 2)).sum()
            out.backward(retain_graph=True)
            self.optimizer.step()
            out.backward()

    with pytest.raises(gradmend.ConflictError) as caught, gradmend.watch():
        Trainer().step()
    message = caught.value.conflict.message
    assert "SGD.step on line" in message and "changes `self.critic.1.weight` in place" in message


class _Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad.mul_(2)


def test_a_custom_backward_is_no_hook() -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(gradmend.ConflictError) as caught, gradmend.watch():
        (x * 2 + _Doubles.apply(x * 3)).backward(torch.ones(2))
    assert caught.value.conflict.rule == "GM207"
    assert "hook" not in str(caught.value)


@pytest.mark.parametrize("rule", ["GM208", "GM101"])
def test_a_proof_is_promised_where_there_is_one(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    said = prover(Conflict(rule, "silent", ""))
    assert ("if it can prove it" in said) == (rule == "GM208")
