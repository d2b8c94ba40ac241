"""Compiled or pure Python: which of the two is wanted, and which of them this is. Loads no torch."""

from __future__ import annotations

import os
from importlib.util import find_spec


def wants_pure() -> bool:
    """`GRADMEND_PURE=1` does without the compiled part; 0 or nothing does not."""
    return os.environ.get("GRADMEND_PURE", "0") not in ("", "0")


def form() -> str:
    if wants_pure():
        return "pure Python, as GRADMEND_PURE says"
    if find_spec("gradmend.capture._fast") is None:
        return "pure Python, slower: no compiler was found when it was installed"
    return "compiled"
