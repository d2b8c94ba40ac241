from __future__ import annotations

import linecache
from dataclasses import replace
from pathlib import Path

import pytest
from snippet_calls import frame_of

from gradmend.model import Frame
from gradmend.story.names import (
    argument_name,
    enclosing_loop,
    result_name,
    statement_lines,
    written_name,
)

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.init import zeros_
x, a, b, i = torch.ones(3), torch.ones(3), torch.ones(3), 1
buf, h, lo, hi = torch.empty(3), torch.ones(3, 3), torch.empty(2), torch.empty(2, dtype=torch.int64)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.act = nn.ReLU(inplace=True)
        self.fc = nn.Linear(3, 3)
        self.body = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
self = Net()
"""

WRITES = [
    ("x += a", "__iadd__", "x"),
    ("h[i] = a", "__setitem__", "h[i]"),
    ("h[i] += a", "__iadd__", "h[i]"),
    ("h[i] += a", "__setitem__", "h[i]"),
    ("x.relu_()", "relu_", "x"),
    ("h[:, 0].mul_(2)", "mul_", "h[:, 0]"),
    ("x.view(-1).add_(1)", "add_", "x.view(-1)"),
    ("torch.add(a, b, out=buf)", "add", "buf"),
    ("torch.max(h[:2], 1, out=(lo, hi))", "max", "lo, hi"),
    ("torch.relu_(x)", "relu_", "x"),
    ("y = F.relu(x, inplace=True)", "relu", "x"),
    ("y = self.relu(x)", "relu", "x"),
    ("y = self.act(x)", "relu_", "x"),
    ("y = self.act(input=x)", "relu_", "x"),
    ("y = self.body(x)", "relu_", None),  # what the inner ReLU writes has no name here
    ("zeros_(x)", "zeros_", "x"),
    ("nn.init.ones_(h[0])", "ones_", "h[0]"),
    ("x.data = a", "__set__", "x"),
    ("y = (x\n    .exp()\n    .mul_(a))", "mul_", "x.exp()"),
    ("é = x; é += a", "__iadd__", "é"),
]


# What torch calls it when an operator, an init function or a module with `inplace=True` runs.
CALLED = {
    "__iadd__": "add_",
    "__imul__": "mul_",
    "zeros_": "zero_",
    "ones_": "fill_",
}


@pytest.mark.parametrize(("line", "op", "name"), WRITES)
def test_the_written_tensor_is_named(tmp_path: Path, line: str, op: str, name: str | None) -> None:
    called = "relu" if "self." in line else CALLED.get(op, op)
    frame = frame_of(tmp_path, HEAD + line + "\n", called)
    assert written_name(frame, op) == name


@pytest.mark.parametrize(
    ("line", "op", "name"),
    [
        ("x += a", "__iadd__", "x"),
        ("h[i] = a", "__setitem__", "h[i]"),
        ("y = x.clone().relu_()", "relu_", "x.clone()"),
        ("x.add_(1); a.mul_(1)", "add_", "x"),
        ("x.add_(1); a.add_(1)", "add_", None),
        ("y = x.relu_() + a.relu_()", "relu_", None),
        ("if True: y = x.relu_()", "relu_", "x"),
    ],
)
def test_without_columns_only_what_is_certain(tmp_path: Path, line: str, op: str, name: str | None) -> None:
    frame = frame_of(tmp_path, HEAD + line + "\n", CALLED.get(op, op))
    assert written_name(replace(frame, col=None, end_col=None), op) == name


RESULTS = [
    ("y = x.exp()", "exp", "y"),
    ("y: torch.Tensor = x.exp()", "exp", "y"),
    ("self.state = x.exp()", "exp", "self.state"),
    ("p, q = h[:2].unbind()", "unbind", "p, q"),
    ("y = x.exp().sum()", "exp", None),
    ("y = x.exp().sum()", "sum", "y"),
    ("x *= a", "__imul__", "x"),
    ("print((z := x.exp()).shape)", "exp", "z"),
    ("y = a - b", "sub", "y"),
    ("y = self.fc(x)", "linear", "y"),
]


@pytest.mark.parametrize(("line", "op", "name"), RESULTS)
def test_the_result_is_named(tmp_path: Path, line: str, op: str, name: str | None) -> None:
    frame = frame_of(tmp_path, HEAD + line + "\n", CALLED.get(op, op))
    assert result_name(frame) == name


ARGUMENTS = [
    ('y = torch.einsum("i,ij,j->i", a, h, b)', "einsum", "mat2", "bmm", None),
    ("y = x.mul(a)", "mul", 0, None, "x"),
    ("y = x.mul(a)", "mul", "other", "mul", "a"),
    ("y = a * h", "mul", "self", None, "a"),
    ("y = a * h", "mul", "other", None, "h"),
    ("y = a @ h", "matmul", 1, None, "h"),
    ("y = torch.where(a > 0, a, b)", "where", "other", "where", "b"),
    ("y = torch.mul(input=a, other=b)", "mul", "other", "mul", "b"),
    ("y = F.linear(x, h)", "linear", "weight", "linear", "h"),
    ("y = self.fc(x)", "linear", "weight", "linear", "self.fc.weight"),
    ("y = self.fc(x)", "linear", "input", "linear", "x"),
    ("y = h[i]", "__getitem__", "indices", None, "i"),
    ("y = -x", "neg", 0, None, "x"),
    ("args = (a, b); y = torch.mul(*args)", "mul", 1, None, None),
    ("y = x.mul(2)", "mul", 1, None, None),
]


@pytest.mark.parametrize(("line", "op", "which", "schema", "name"), ARGUMENTS)
def test_arguments_are_named(
    tmp_path: Path, line: str, op: str, which: int | str, schema: str | None, name: str | None
) -> None:
    assert argument_name(frame_of(tmp_path, HEAD + line + "\n", op), which, schema) == name


def test_loops_and_statements(tmp_path: Path) -> None:
    body = """\
for n in range(1):
    while True:
        y = torch.add(
            x,
            a,
        )
        break
    def inner():
        return torch.mul(x, a)
    inner()
else:
    z = torch.sub(x, a)
"""
    top = HEAD.count("\n")
    added = frame_of(tmp_path, HEAD + body, "add")
    assert enclosing_loop(added) == top + 2
    assert statement_lines(added) == (top + 3, top + 6)
    assert enclosing_loop(frame_of(tmp_path, HEAD + body, "mul")) is None  # the loop is the caller's
    assert enclosing_loop(frame_of(tmp_path, HEAD + body, "sub")) is None  # `else` runs once
    header = Frame(added.file, top + 1, "<module>")
    assert statement_lines(header) == (top + 1, top + 1)


@pytest.mark.parametrize("text", ["", "%matplotlib inline\nx += 1\n", "def (:\n"])
def test_unreadable_source_has_no_names(tmp_path: Path, text: str) -> None:
    file = tmp_path / "odd.py"
    file.write_text(text)
    frame = Frame(str(file), 2, "<module>", col=0, end_line=2, end_col=6)
    assert written_name(frame, "add_") is None
    assert result_name(frame) is None
    assert argument_name(frame, 0) is None
    assert enclosing_loop(frame) is None
    assert statement_lines(frame) is None


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "edited.py"
    frame = Frame(str(file), 1, "<module>", col=0, end_line=1, end_col=6)
    file.write_text("x += 1\n")
    assert written_name(frame, "__iadd__") == "x"
    file.write_text("y += 1\n")
    linecache.checkcache(str(file))
    assert written_name(frame, "__iadd__") == "y"


def test_a_missing_file_has_no_names() -> None:
    assert written_name(Frame("<stdin>", 1, "<module>", col=0, end_line=1, end_col=6), "add_") is None
