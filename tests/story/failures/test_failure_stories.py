"""The stories of PyTorch's own errors as they are shown: which lines, with which labels."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
import torch
from broken_programs import fail

import gradmend
from gradmend.errors import attached
from gradmend.story.failures.explain import from_text
from gradmend.story.telling import tell


def test_a_second_backward_shows_all_three_lines(tmp_path: Path) -> None:
    program = """
    import torch
    x = torch.ones(3, requires_grad=True)
    h = x.exp()
    h.sum().backward()
    (h * 2).sum().backward()  # <- here
    """
    with gradmend.watch():
        exc, _, line = fail(tmp_path, program)
    conflict = attached(exc)
    assert conflict is not None and conflict.rule == "GM131"
    spans = [(s.frame.line, s.label, s.primary) for s in tell(conflict).spans]
    assert spans == [
        (line - 2, "the old graph is stored here", True),
        (line - 1, "an earlier backward() was here", False),
        (line, "this backward() goes into it again", False),
    ]


def test_a_refused_write_shows_its_line(tmp_path: Path) -> None:
    exc, _, line = fail(tmp_path, "import torch\nw = torch.ones(3, requires_grad=True)\nw += 1  # <- here\n")
    text = gradmend.explain(exc)
    assert f"{line} | w += 1  # <- here" in text and "= help: " in text


def test_a_mismatch_read_from_text_shows_the_save_and_the_backward(tmp_path: Path) -> None:
    program = "import torch\nx = torch.ones(3, requires_grad=True)\ny = x.exp()\ny += 1\ny.sum().backward()  # <- here\n"
    with pytest.warns(UserWarning, match="Error detected") as caught, torch.autograd.set_detect_anomaly(True):
        exc, _, line = fail(tmp_path, program)
    warned = next(w for w in caught if "Error detected" in str(w.message))
    conflict = from_text(f"UserWarning: {warned.message}\n" + "".join(traceback.format_exception(exc)))
    assert conflict is not None
    labels = {s.frame.line: s.label for s in tell(conflict).spans}
    assert labels == {line - 2: "look here first", line: "backward() needs it here"}
