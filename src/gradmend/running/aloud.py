"""Our words on stderr, where the program has left one."""

from __future__ import annotations

import sys


def put(text: str) -> None:
    """A program may close `sys.stderr`, or set it to None: then nobody hears, and that is no error."""
    if sys.stderr is not None and not getattr(sys.stderr, "closed", False):
        print(text, file=sys.stderr)
