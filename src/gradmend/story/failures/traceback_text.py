"""Reading printed tracebacks: Python's own, IPython's, rich's, cut off at either end.

A printed frame has no columns, so names at its line are told only where the line leaves no choice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gradmend.model import Frame, Owner, Site

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Log prefixes such as "[rank0]: " and the boxes that rich draws.
_PREFIX = re.compile(r"^\s*(?:\[rank\d+\]:|\[\d+\]:|>|E {2,})\s?")
_BOX = re.compile(r"^[│|┃]\s?(.*?)\s*[│|┃]?$")

_PYTHON = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
# File ~/lib/x.py:83, in f(a, b)      File /x.py:83      Cell In[3], line 4      Input In [3], in <cell line: 2>()
_IPYTHON = re.compile(r"^File (?P<file>.+?):(?P<line>\d+)(?:, in (?P<function>[\w.<>]+).*)?$")
_CELL = re.compile(r"^(?:Cell )?In(?:put In)? ?\[(?P<cell>\d+)\](?:,? line (?P<line>\d+))?.*$")
_ARROW = re.compile(r"^-+> ?(?P<line>\d+)\b")
# <ipython-input-3-abc> in forward(self, x)      ~/lib/torch/_tensor.py in backward(...)
_OLD_IPYTHON = re.compile(r"^(?P<file><ipython-input-[^>]+>|[~/.]\S+\.py) in (?P<function>[\w.<>]+).*$")
# tests/test_net.py:12: in test_step      tests/test_net.py:12: RuntimeError
_PYTEST = re.compile(r"^(?P<file>\S+\.py):(?P<line>\d+): (?:in (?P<function>\w+)|\w+(?:Error|Exception))$")
_RICH = re.compile(r"^(?P<file>\S+\.py|<\w+>):(?P<line>\d+) in (?P<function>[\w.<>]+)\s*$")

_ERROR = re.compile(r"^(?P<type>(?:\w+\.)*\w*(?:Error|Exception|Interrupt))(?:: |:$)(?P<text>.*)$")
_ANOMALY = re.compile(r"Error detected in (?P<node>\w+)\. Traceback of forward call that caused the error")
_INDUCED = re.compile(r"Previous calculation was induced by (?P<node>\w+)")


@dataclass(frozen=True)
class Printed:
    """What a text says: the error, the frames that led to it, and those of the forward (anomaly mode)."""

    message: str
    site: Site  # innermost frame first
    forward: Site  # where anomaly mode says the failing node was made
    forward_node: str
    error_type: str = ""

    @property
    def found(self) -> bool:
        return bool(self.site.frames or self.error_type)


def read(text: str) -> Printed:
    lines = [_plain(line) for line in text.splitlines()]
    start, node = _anomaly(lines)
    forward, calls = _parted(lines, start) if start is not None else ([], lines)
    error_type, message = _error(calls) or _error(lines) or ("", " ".join(" ".join(lines).split()))
    return Printed(
        message=message,
        site=Site(tuple(reversed(frames_in("\n".join(_last_traceback(calls)))))),
        forward=Site(tuple(reversed(frames_in("\n".join(forward))))),
        forward_node=node,
        error_type=error_type,
    )


def frames_in(text: str) -> list[Frame]:
    """The frames in the order printed: the innermost last."""
    frames: list[Frame] = []
    pending: tuple[str, str] | None = None  # an IPython header whose line number comes with its arrow
    for line in text.splitlines():
        line = _plain(line)
        stripped = line.strip()
        if (
            found := _PYTHON.match(line)
            or _IPYTHON.match(stripped)
            or _RICH.match(stripped)
            or _PYTEST.match(stripped)
        ):
            frames.append(_frame(found["file"], int(found["line"]), found["function"] or ""))
            pending = None
        elif found := _OLD_IPYTHON.match(stripped):
            pending = (found["file"], found["function"])
        elif found := _CELL.match(stripped):
            pending = (f"In [{found['cell']}]", "<cell>")
            if found["line"]:
                frames.append(_frame(pending[0], int(found["line"]), pending[1]))
                pending = None
        elif pending and (found := _ARROW.match(stripped)):
            frames.append(_frame(pending[0], int(found["line"]), pending[1]))
            pending = None
    return frames


def _frame(file: str, line: int, function: str) -> Frame:
    return Frame(file, line, function.strip(), _owner(file))


def _owner(file: str) -> Owner:
    path = file.replace("\\", "/")
    if "/torch/" in path and ("-packages/" in path or "/lib/" in path):
        return "torch"
    if "-packages/" in path or re.search(r"/lib/python3[^/]*/", path) or path.startswith("<frozen"):
        return "library"
    return "user"


def _plain(line: str) -> str:
    line = _PREFIX.sub("", _ANSI.sub("", line.rstrip()), count=1) if line.strip() else ""
    boxed = _BOX.match(line.strip())
    return boxed.group(1) if boxed else line


def _anomaly(lines: list[str]) -> tuple[int | None, str]:
    for index, line in enumerate(lines):
        found = _ANOMALY.search(line)
        if found:
            return index, found["node"]
    return None, ""


def _parted(lines: list[str], start: int) -> tuple[list[str], list[str]]:
    """Anomaly mode prints the forward's frames first, in a warning, and the traceback after them."""
    for index in range(start + 1, len(lines)):
        if lines[index].startswith("Traceback (most recent call last)"):
            return lines[start:index], lines[:start] + lines[index:]
    return lines[start:], lines[:start]


def _last_traceback(lines: list[str]) -> list[str]:
    """Of chained tracebacks, the one that ends in the error told."""
    starts = [
        i for i, line in enumerate(lines) if line.strip().startswith("Traceback (most recent call last)")
    ]
    return lines[starts[-1] :] if starts else lines


def _error(lines: list[str]) -> tuple[str, str] | None:
    """The last line that looks like `SomeError: text`, with the lines it wraps onto."""
    for index in range(len(lines) - 1, -1, -1):
        found = _ERROR.match(lines[index].strip())
        if found:
            rest = []
            for line in lines[index + 1 :]:
                if not line.strip() or _PYTHON.match(line):
                    break
                rest.append(line.strip())
            return found["type"], " ".join([found["text"], *rest]).strip()
    return None
