from __future__ import annotations

from pathlib import Path

import pytest
from broken_programs import fail

from gradmend.story.failures import diagnose

HEAD = """
import torch
import torch.nn.functional as F
w = torch.ones(4, requires_grad=True)
"""

ROWS = [
    ("torch.ones(3).sum().backward()  # <- here", "GM132", "no gradient flows into", "requires_grad=False"),
    ("torch.autograd.grad(w.sum(), torch.ones(3))  # <- here", "GM132", "does not require grad", "`.requires_grad_()`"),
    ("y = w * 1\nz = (y * y).sum()\ny.detach_()\nz.backward()  # <- here", "GM133", "`detach_()`", "use `detach()`"),
    ("b = torch.ones(3, requires_grad=True)\ntorch.autograd.grad(w.sum(), [w, b])  # <- here", "GM134", "at index 1", "allow_unused=True"),
    ("y = F.leaky_relu(w * 1, -0.1, inplace=True).sum()\ny.backward()  # <- here", "GM135", "negative slope", "inplace=True"),
    ("y = F.elu(w * -1, -0.5, inplace=True).sum()\ny.backward()  # <- here", "GM135", "negative slope", "inplace=True"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "rule", "words", "change"), ROWS, ids=[r[0] for r in ROWS])
def test_the_line_the_cause_and_the_change(
    tmp_path: Path, program: str, rule: str, words: str, change: str
) -> None:
    exc, file, line = fail(tmp_path, HEAD + program)
    conflict = diagnose(exc)
    assert conflict is not None, exc
    assert (conflict.rule, conflict.kind) == (rule, "error")
    assert [(c.file, c.line) for c in conflict.culprits] == [(file, line)]
    assert conflict.backward is not None and conflict.backward.line == line
    assert words in conflict.message
    assert any(change in h for h in conflict.help), conflict.help


def test_the_lines_that_cut_the_graph_are_listed(tmp_path: Path) -> None:
    program = """
    import torch
    w = torch.ones(4, requires_grad=True)
    def unrelated():
        return w.detach()
    def train():
        y = (w * 2).sum().item()
        with torch.no_grad():
            z = w * 3
        loss = torch.tensor(y) + z.sum()
        loss.backward()  # <- here
        loss.data
    train()
    """
    exc, _, line = fail(tmp_path, program)
    conflict = diagnose(exc)
    assert conflict is not None
    cuts = [n for n in conflict.notes if "cuts the graph" in n]
    assert cuts == [
        f"line {line - 4} cuts the graph: `.item()`",
        f"line {line - 3} cuts the graph: `torch.no_grad()`",
        f"line {line - 1} cuts the graph: `torch.tensor(...)`",
    ]


def test_a_wording_of_older_releases_is_known() -> None:
    old = RuntimeError(
        "One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused"
    )
    conflict = diagnose(old)
    assert conflict is not None and conflict.rule == "GM134"
