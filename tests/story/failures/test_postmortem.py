"""Version mismatches of the installed torch, told after the fact from the recorder's ring."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from broken_programs import fail

from gradmend.capture import recorder
from gradmend.capture.hooks import backward_calls
from gradmend.capture.memory.layouts import Layout
from gradmend.capture.sites import Raw, raw_here
from gradmend.capture.taps import switch
from gradmend.model import Conflict
from gradmend.story.failures.postmortem import postmortem
from gradmend.story.failures.used_up import anomaly_site

told: list[Conflict | None] = []


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    told.clear()
    switch.arm()
    ring = recorder.start()

    def failed(call: Any, exc: BaseException, roots: Any) -> None:
        told.append(postmortem(exc, roots, ring, call.site))

    backward_calls.arm(failed)
    yield
    backward_calls.disarm()
    backward_calls.forget()
    recorder.stop()
    switch.disarm()


HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
x = torch.randn(4, 3, requires_grad=True)
"""

# (program, rule, node, words of the message)
ROWS = [
    ("y = x.exp()\ny += 1  # <- here\ny.sum().backward()", "GM101", "ExpBackward0", "line 9 changes `y` in place, but backward() on line 10 still needs `y` as exp returned it"),
    ("y = x.relu()\nz = y * 2\nz.add_(1)\ny.mul_(2)  # <- here\nz.sum().backward()", "GM101", "ReluBackward0", "still needs `y` as relu returned it"),
    ("y = x * 1\nz = y * y\ny.add_(1)  # <- here\nz.sum().backward()", "GM102", "MulBackward0", "as mul used it"),
    ("y = x * 1\nz = y.sin()\nwith torch.no_grad():\n    y.zero_()  # <- here\nz.sum().backward()", "GM102", "SinBackward0", "still needs `y` as sin used it"),
    ("i = torch.tensor([0, 1])\nz = x[i]\ni += 1  # <- here\nz.sum().backward()", "GM106", "IndexBackward0", "still needs `i` as index used it"),
    (
        "m = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))\nopt = torch.optim.SGD(m.parameters(), 0.1)\n"
        "y = m(x).sum()\nz = y * 1\ny.backward(retain_graph=True)\nopt.step()  # <- here\nz.backward()",
        "GM104", "AddmmBackward0", "line 13 changes `m.1.weight` in place",
    ),
    (
        "m = nn.Conv2d(1, 1, 3)\nopt = torch.optim.Adam(m.parameters(), 0.1, foreach=False)\n"
        "y = m(x.reshape(1, 1, 4, 3)).sum()\ny.backward(retain_graph=True)\nopt.step()  # <- here\ny.backward()",
        "GM104", "ConvolutionBackward0", "line 12 changes `m.weight` in place",
    ),
    ("h = torch.zeros(6, 3)\nw = torch.ones(3, requires_grad=True)\nfor i in range(1, 6):\n    h[i] = (h[i - 1] * w) + w  # <- here\nh.sum().backward()", "GM109", "MulBackward0", "although the gradient is right: line 11 changes `h[i]` in place"),
    ("y = x * 1\nz = y[0] * y[0]\ny[1] = 2.0\ny[0] = 1.0  # <- here\nz.sum().backward()", "GM102", "MulBackward0", "as mul used it"),
    ("y = x * 1\nz = y[:, 0] * 2.0 * y[:, 0]\ny[:, 1] = 2.0  # <- here\nz.sum().backward()", "GM109", "MulBackward0", "although the gradient is right"),
    ("w = torch.ones(3, requires_grad=True)\ny = w * w\nwith torch.no_grad():\n    w -= 0.1  # <- here\ny.sum().backward()", "GM105", "MulBackward0", "still needs `w` as mul used it"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "rule", "node", "words"), ROWS, ids=[r[0].splitlines()[0] for r in ROWS])
def test_the_write_is_found_by_address_and_version(
    tmp_path: Path, program: str, rule: str, node: str, words: str
) -> None:
    exc, file, line = fail(tmp_path, HEAD + program)
    assert "modified by an inplace operation" in str(exc)
    (conflict,) = told
    assert conflict is not None and conflict.kind == ("refused-but-right" if rule == "GM109" else "error")
    assert [(c.file, c.line) for c in conflict.culprits][:1] == [(file, line)]
    assert conflict.saved is not None and conflict.saved.node == node
    assert words in conflict.message
    assert conflict.rule == rule
    assert conflict.backward is not None and conflict.backward.line > line
    assert any("by the address and the versions" in n for n in conflict.notes)


def test_only_the_writes_after_the_save_are_told(tmp_path: Path) -> None:
    program = """
    y = x * 1
    y.add_(1)
    y.add_(1)
    z = y * y
    y.add_(1)  # <- here
    y.mul_(2)
    z.sum().backward()
    """
    _, _, line = fail(tmp_path, HEAD + "".join(f"{row.strip()}\n" for row in program.splitlines()))
    (conflict,) = told
    assert conflict is not None
    assert [(c.line, c.op.strip("_").removeprefix("i")) for c in conflict.culprits] == [
        (line, "add"),
        (line + 1, "mul"),
    ]


def test_a_node_that_shows_nothing_is_matched_by_size_and_says_so(tmp_path: Path) -> None:
    program = "y = x * 1\ny[1:].exp_()\ny.add_(1)  # <- here\ny.sum().backward()"
    exc, file, line = fail(tmp_path, HEAD + program)
    (conflict,) = told
    assert "modified by an inplace" in str(exc) and conflict is not None
    assert [(c.file, c.line) for c in conflict.culprits] == [(file, line)]
    assert any("by size and version alone" in n for n in conflict.notes)


def test_a_write_nobody_recorded_is_said_to_be_unseen(tmp_path: Path) -> None:
    program = """
y = x.exp()
torch._C.TensorBase.add_(y, 1)
y.sum().backward()
"""
    fail(tmp_path, HEAD + program)
    (conflict,) = told
    assert conflict is not None and conflict.culprits == ()
    assert conflict.rule == "GM110"
    assert "something unseen changed `y` in place" in conflict.message
    assert any("no recorded write fits" in n for n in conflict.notes)


def test_nothing_is_unpacked(tmp_path: Path) -> None:
    """Saves behind other hooks are left alone: unpacking could be dear, or raise."""
    asked = []
    x = torch.randn(3, requires_grad=True)

    def unpack(t: torch.Tensor) -> torch.Tensor:
        asked.append(1)
        return t

    with torch.autograd.graph.saved_tensors_hooks(lambda t: ("packed", t), lambda h: unpack(h[1])):
        hidden = x.exp()
    y = x.exp()
    y += 1
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        (y + hidden).sum().backward()
    assert len(told) == 1 and told[0] is not None
    assert told[0].saved is not None and told[0].saved.op == "exp"
    assert len(asked) <= 1  # backward's own asking, if it came that far


def test_another_error_is_none_of_its_business() -> None:
    assert postmortem(RuntimeError("shapes do not match"), [], recorder.start()) is None


@dataclass
class Row:
    lo: int
    hi: int
    version: int
    tick: int
    op: str = "add_"
    raw: Raw = ()
    grid: Layout | None = None
    thread: int = 0
    number: int = 0


class Rows(list[Row]):
    def writes(self, wanted: Callable[[int, int, int], bool]) -> list[Row]:
        return [row for row in self if wanted(row.lo, row.hi - row.lo, row.version)]


def test_an_earlier_life_of_the_memory_is_not_blamed() -> None:
    x = torch.randn(3, requires_grad=True)
    y = x.exp()
    y += 1
    try:
        y.sum().backward()
    except RuntimeError as exc:
        error = exc
    lo = y.data_ptr()
    at_tick = {1: "old_", 2: "old_", 3: "new_"}
    here = raw_here()
    old = [Row(lo, lo + 12, 1, 1, "old_", here), Row(lo, lo + 12, 2, 2, "old_", here)]
    conflict = postmortem(error, [y.sum()], Rows([*old, Row(lo, lo + 12, 1, 3, "new_", here)]))
    assert conflict is not None
    assert [w.op for w in conflict.writes] == [at_tick[3]]


def test_anomaly_mode_adds_the_line_that_saved(tmp_path: Path) -> None:
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        _, file, line = fail(tmp_path, HEAD + "y = x.exp()\ny += 1  # <- here\ny.sum().backward()")
    (conflict,) = told
    assert conflict is not None and conflict.saved is not None
    saved = conflict.saved.site.user
    assert saved is not None and (saved.file, saved.line) == (file, line - 1)
    assert conflict.saved.tensor.name == "y"
    x = torch.ones(3, requires_grad=True).exp()
    assert anomaly_site(x.grad_fn) is None
