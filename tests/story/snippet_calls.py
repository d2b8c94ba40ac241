"""Run a snippet with the real torch, and tell at which expression of it each torch call was made."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gradmend.model import Frame


def frame_in(file: str, depth: int = 1) -> Frame | None:
    """The innermost running frame of this file."""
    raw: FrameType | None = sys._getframe(depth)
    while raw is not None and raw.f_code.co_filename != file:
        raw = raw.f_back
    if raw is None:
        return None
    line, end_line, col, end_col = list(raw.f_code.co_positions())[raw.f_lasti // 2]
    return Frame(file, line or raw.f_lineno, raw.f_code.co_name, "user", col, end_line, end_col)


class Calls(TorchFunctionMode):
    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file
        self.seen: list[tuple[str, Frame]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame = frame_in(self.file)
        if frame is not None:
            self.seen.append((getattr(func, "__name__", str(func)), frame))
        return func(*args, **(kwargs or {}))


def run(tmp_path: Path, snippet: str) -> list[tuple[str, Frame]]:
    path = tmp_path / "snippet.py"
    path.write_text(textwrap.dedent(snippet))
    space: dict[str, Any] = {"torch": torch}
    code = compile(path.read_text(), str(path), "exec")
    with Calls(str(path)) as calls:
        exec(code, space)
    return calls.seen


def frame_of(tmp_path: Path, snippet: str, op: str) -> Frame:
    found = [frame for name, frame in run(tmp_path, snippet) if name == op]
    assert found, f"{op} was not called: {[n for n, _ in run(tmp_path, snippet)]}"
    return found[0]
