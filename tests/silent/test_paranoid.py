"""Fingerprints of every saved tensor take nothing away: the lines that are named stay the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import gradmend

PROGRAMS = {
    "numpy, handed out after the save": "y = x.exp()\na = y.detach().numpy()\na += 1\n",
    "numpy, handed out before the save": "h = x * 2\na = h.detach().numpy()\ny = h.exp() * h\na += 1\n",
    "by an operator": "y = x.exp()\ny += 1\n",
    "by its data": "y = x.exp()\ny.data.add_(1)\n",
}


def lines(file: Path, paranoid: bool) -> list[tuple[int, str]]:
    with pytest.raises(gradmend.ConflictError) as caught, gradmend.watch(paranoid=paranoid):
        exec(compile(file.read_text(), str(file), "exec"), {"__name__": "program"})
    return [(c.line, c.op) for c in caught.value.conflict.culprits]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_lines_are_named(name: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    start = "import torch\nx = torch.ones(3, requires_grad=True)\n"
    file.write_text(f"{start}{PROGRAMS[name]}y.sum().backward()\n")
    named = lines(file, paranoid=False)
    assert named and lines(file, paranoid=True) == named
    written = next(
        n for n, text in enumerate(file.read_text().splitlines(), 1) if "+=" in text or "_(" in text
    )
    assert named[0][0] == written
