"""Whether a stream is painted, as other programs decide it."""

from __future__ import annotations

import os
from typing import TextIO

_DIFF = {
    "-": "31",
    "+": "32",
    "@": "36",
}  # the terminal's own colours, which its owner can read on any background


def coloured(stream: TextIO | None) -> bool:
    """NO_COLOR and TERM=dumb turn colours off, FORCE_COLOR on. The stream may be the program's own make, or closed."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "") not in ("", "0"):
        return True
    if stream is None or getattr(stream, "closed", False) or not hasattr(stream, "isatty"):
        return False
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def painted_diff(patch: str) -> str:
    lines = []
    for line in patch.splitlines(keepends=True):
        code = "1" if line.startswith(("---", "+++")) else _DIFF.get(line[:1])
        body = line.rstrip("\r\n")
        lines.append(f"\x1b[{code}m{body}\x1b[0m{line[len(body) :]}" if code else line)
    return "".join(lines)
