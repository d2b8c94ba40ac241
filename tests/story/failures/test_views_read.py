"""Several views of one call, read after their base was written: the write is the line to look at, and the help runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from broken_programs import fail

from gradmend.story.failures import diagnose

HEAD = "import torch\nx = torch.ones(4, requires_grad=True)\nh = x * 1\n"
PROGRAMS = [
    ("a, b = h.chunk(2)", "h.mul_(2)  # <- here", "mul_", "a, b = h.clone().chunk(2)", "h = h.mul(2)"),
    ("a, b = torch.chunk(h, 2)", "h += 1  # <- here", "add_", "a, b = h.clone().chunk(2)", "h = h + 1"),
    ("a, b = h.view(2, 2).unbind()", "h *= 2  # <- here", "mul_", "a, b = h.clone().view(2, 2).unbind()", "h = h * 2"),
    ("a, b = h.split(2)", "h[0] = 7.0  # <- here", "__setitem__", "a, b = h.clone().split(2)", None),
]  # fmt: skip


@pytest.mark.parametrize(("made", "write", "op", "cloned", "rebound"), PROGRAMS, ids=[p[0] for p in PROGRAMS])
def test_the_write_is_named_and_each_help_runs(
    tmp_path: Path, made: str, write: str, op: str, cloned: str, rebound: str | None
) -> None:
    exc, file, line = fail(tmp_path, f"{HEAD}{made}\n{write}\nc = a * 3\nc.sum().backward()\n")
    conflict = diagnose(exc)
    assert conflict is not None and conflict.rule == "GM122"
    assert [(c.file, c.line, c.op) for c in conflict.culprits] == [(file, line, op), (file, line + 1, "read")]
    assert "writes to it" not in conflict.message and "`h`" in conflict.message
    changes = re.findall(r"write line (\d+) as `([^`]*)`", "\n".join(conflict.help))
    assert {text for _, text in changes} == {cloned, rebound} - {None}
    for number, text in changes:
        lines = Path(file).read_text().splitlines()
        lines[int(number) - 1] = text
        names: dict[str, object] = {"__name__": "__main__"}
        exec("\n".join(lines), names)
        assert names["x"].grad.tolist() == [3.0, 3.0, 0.0, 0.0]  # type: ignore[attr-defined]
        assert names["a"].flatten().tolist() == [1.0, 1.0]  # type: ignore[attr-defined]
