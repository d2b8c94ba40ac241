"""`.grad` that somebody holds while backward adds to it: wrong only where it is read again, which the source alone shows."""

import sys
from pathlib import Path

import pytest
import torch

import gradmend
from gradmend.cli.main import main

HEAD = """import torch
w = torch.tensor([1.0, 2.0], requires_grad=True)
(w * 2).sum().backward()
held = [w.grad]
(w * 3).sum().backward()
"""
WRONG = HEAD + "print(held[0] * 1.0)\n"
RIGHT = HEAD + "held = [w.grad]\nprint(held[0] * 1.0)\n"


@pytest.mark.parametrize("program", [WRONG, RIGHT], ids=["read again", "bound anew"])
def test_running_they_look_alike(program: str) -> None:
    with gradmend.watch() as session:
        names: dict[str, object] = {}
        exec(HEAD, names)
        w = names["w"]
        assert isinstance(w, torch.Tensor)
        assert sys.getrefcount(w.grad) > 2  # of the list, beside its own: in both programs
        exec(program, {})
    assert session.outcome == "clean"


def test_the_source_tells_them_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = {}
    for name, program in {"wrong": WRONG, "right": RIGHT}.items():
        file = tmp_path / f"{name}.py"
        file.write_text(program.replace("[w.grad]", "w.grad").replace("held[0]", "held"))
        main(["check", "--no-cache", "--isolated", str(file)])
        told[name] = "GM212" in capsys.readouterr().out
    assert told == {"wrong": True, "right": False}
