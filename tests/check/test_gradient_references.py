"""References to .grad that a later backward() adds to, read through whatever shows the same memory."""

from __future__ import annotations

import pytest
import torch

from gradmend.check.files import check_file

PROGRAM = """\
import torch
w = torch.ones(2, 2, requires_grad=True)
(w * 2).sum().backward()
first = w.grad{taken}
(w * 3).sum().backward()
said = torch.dot(first{read}.flatten(), w.grad.flatten())
"""


@pytest.mark.parametrize(
    ("taken", "read", "stale"),
    [
        ("", "", True),
        ("", ".view(4)", True),
        ("", ".detach()", True),
        (".T", "", True),
        (".data", "", True),
        (".detach()", "", True),
        (".clone()", "", False),
        (".clone().T", "", False),
    ],
)
def test_a_read_through_a_view(taken: str, read: str, stale: bool) -> None:
    source = PROGRAM.format(taken=taken, read=read)
    space: dict[str, torch.Tensor] = {}
    exec(source, space)
    assert float(space["said"]) == (4 * 5 * 5 if stale else 4 * 2 * 5)
    found = check_file("/nowhere/main.py", source.encode()).findings
    assert [(f.place.line, f.rule) for f in found] == [(5, "GM212")] * stale
    if stale:
        assert "`w.grad` on line 4 still refers to, and line 6 reads it" in found[0].message
