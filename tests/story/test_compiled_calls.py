"""Writes inside functions that TorchScript or torch.compile runs: named from the source, where no tap can see."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradmend.model import Frame
from gradmend.story.compiled_calls import compiled_writes


@pytest.mark.parametrize("decorator", ["@torch.jit.script", "@script", "@torch.compile(dynamic=True)"])
@pytest.mark.parametrize("write", ["x.mul_(g).add_(1.0)", "x += g", "x[0] = g"])
def test_names_the_line_inside_and_the_call(decorator: str, write: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        f"{decorator}\ndef gate(x, g):\n    {write}\n    return x\n"
        "def forward(a, b):\n    h = torch.tanh(a)\n    return gate(h, b)\n"
    )
    found = compiled_writes(Frame(str(file), 6, "forward"), "h")
    assert [(f.line, called) for f, called in found] == [(3, "gate"), (7, "gate")]


@pytest.mark.parametrize(
    "text",
    [
        "@torch.jit.script\ndef gate(x, g):\n    y = x * g\n    y += 1\n    return y\n",  # writes what is its own
        "def gate(x, g):\n    x.mul_(g)\n    return x\n",  # not compiled: a tap would have seen it
    ],
)
def test_names_no_other(text: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(text + "def forward(a, b):\n    h = torch.tanh(a)\n    return gate(h, b)\n")
    line = text.count("\n") + 2
    assert compiled_writes(Frame(str(file), line, "forward"), "h") == []
