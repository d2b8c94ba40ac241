"""The copy of a program that waits after its beginning, seen from outside."""

from __future__ import annotations

import json
import socket
from typing import Any

# Runs that differ from a plain one only by what is done from the first graph on.
MODES = frozenset({"plain", "heal", "copies", "unchecked", "memory", "forgive"})


def ask(path: str, requests: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Make runs from the waiting copy; None where it is gone."""
    try:
        with socket.socket(socket.AF_UNIX) as talk:
            talk.connect(path)
            with talk.makefile("rw", encoding="utf-8") as lines:
                lines.write(json.dumps(requests) + "\n")
                lines.flush()
                answer = lines.readline()
    except OSError:
        return None
    return json.loads(answer) if answer else None
