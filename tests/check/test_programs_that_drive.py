"""A program without a write of its own is walked for those of the modules that it imports; and names that are read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradmend.check.files import check_file
from gradmend.check.run import check
from gradmend.check.settings import Settings

MODEL = """\
import torch.nn as nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)
    def forward(self, x):
        return self.l(x).sigmoid()
"""
LOOP = """\
import torch
def train(model, steps):
    for _ in range(steps):
        out = model(torch.ones(2, 3))
        out *= 2
        out.sum().backward()
"""
MAIN = "from {loop} import train\nfrom pkg.model import Net\ndef main():\n    train(Net(), 3)\nif __name__ == '__main__':\n    main()\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").write_text("")
    (tmp_path / "pkg/model.py").write_text(MODEL)
    (tmp_path / "pkg/loop.py").write_text(LOOP)
    (tmp_path / "pkg/again.py").write_text("from pkg.loop import train\n")
    return tmp_path


@pytest.mark.parametrize("loop", ["pkg.loop", "pkg.again"])
def test_a_main_that_only_calls(project: Path, loop: str) -> None:
    main = project / "main.py"
    main.write_text(MAIN.format(loop=loop))
    files = [str(main), str(project / "pkg/loop.py")]
    both = check(files, Settings(), jobs=1).findings
    assert [(Path(f.place.file).name, f.place.line, f.rule) for f in both] == [("loop.py", 5, "GM101")]
    alone = check(files[:1], Settings(), jobs=1).findings
    assert [(Path(f.place.file).name, f.place.line, f.rule) for f in alone] == [("main.py", 4, "GM101")]


def test_a_module_that_is_imported_but_not_called_is_no_program(project: Path) -> None:
    main = project / "main.py"
    main.write_text(MAIN.format(loop="pkg.loop").partition("if __name__")[0])
    assert check_file(str(main)).findings == []


CHECKPOINT = """\
import torch
from torch.utils.checkpoint import checkpoint
x = torch.tensor([1.0, 2.0], requires_grad=True)
scale = {value}
def f(t):
    return (t * scale) ** 2
y = checkpoint(f, x, use_reentrant=False)
{before}
y.sum().backward()
{after}
"""


@pytest.mark.parametrize("value", ["torch.tensor(2.0)", "2.0"])
def test_a_name_that_a_checkpointed_function_reads_again(value: str) -> None:
    broken = CHECKPOINT.format(value=value, before="scale = scale * 2.5", after="")
    found = check_file("/nowhere/main.py", broken.encode()).findings
    assert [(f.place.line, f.rule, f.severity) for f in found] == [(8, "GM208", "warning")]
    assert "gives `scale` another value" in found[0].message
    right = gradient(CHECKPOINT.format(value=value, before="", after=""))
    assert right == [8.0, 16.0] and gradient(broken) != right
    safe = CHECKPOINT.format(value=value, before="", after="scale = 5.0")
    assert check_file("/nowhere/main.py", safe.encode()).findings == []


def gradient(source: str) -> list[float]:
    space: dict = {}
    exec(compile(source, "main.py", "exec"), space)
    return [float(v) for v in space["x"].grad]


def test_an_attribute_that_a_checkpointed_method_reads_again() -> None:
    source = """\
import torch
from torch.utils.checkpoint import checkpoint
class M(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(2, 2)
        self.temp = 1.0
    def inner(self, t):
        return (self.l(t) / self.temp).exp()
    def forward(self, t):
        return checkpoint(self.inner, t, use_reentrant=False)
m = M()
for e in range(3):
    out = m(torch.ones(1, 2, requires_grad=True)).sum()
    m.temp = m.temp * 0.9
    out.backward()
"""
    found = check_file("/nowhere/main.py", source.encode()).findings
    assert [(f.place.line, f.rule) for f in found] == [(15, "GM208")]


def notebook(folder: Path, *cells: str) -> list[tuple[int | None, int, str]]:
    file = folder / "n.ipynb"
    file.write_text(json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]}))
    return [(f.place.cell, f.place.line, f.rule) for f in check_file(str(file)).findings]


HEAD = "import torch\nx = torch.ones(3, requires_grad=True)"


def test_a_cell_that_is_no_python_hides_no_other(tmp_path: Path) -> None:
    body = "y = x.exp()\ny += 1\ny.sum().backward()"
    assert notebook(tmp_path, HEAD, "def f(:\n", body) == [(2, 1, "GM000"), (3, 2, "GM101")]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("%time y += 1", [(2, 2, "GM101")]),
        ("%time y.add_(1)", [(2, 2, "GM101")]),
        ("%timeit -n1 -r1 y.add_(1)", [(2, 2, "GM101")]),
        ("%time y = y + 1\ny += 1", []),
        ("%timeit y = y + 1\ny += 1", [(2, 3, "GM101")]),  # what it binds is its own
        ("%time", []),
        ("%time not python", []),
    ],
)
def test_lines_that_are_timed_run(tmp_path: Path, line: str, told: list[tuple[int, int, str]]) -> None:
    assert notebook(tmp_path, HEAD, f"y = x.exp()\n{line}\ny.sum().backward()") == told


def test_a_cell_that_is_indented_as_a_whole(tmp_path: Path) -> None:
    body = "    y = x.exp()\n    y += 1\n    y.sum().backward()"
    assert notebook(tmp_path, HEAD, body, "z = 1") == [(2, 2, "GM101")]


def test_a_notebook_with_half_a_letter(tmp_path: Path) -> None:
    assert notebook(tmp_path, HEAD, "# \ud800\ny = x.exp()\ny += 1\ny.sum().backward()") == [(2, 3, "GM101")]
