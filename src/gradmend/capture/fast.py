"""The compiled part, where it could be built: the walk up the frames, and taps that pass calls on.

Without it everything works the same, only slower; `GRADMEND_PURE=1` does without it.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

compiled: Any = None
if not os.environ.get("GRADMEND_PURE"):
    try:
        compiled = import_module("gradmend.capture._fast")
    except ImportError:  # no compiler where it was installed, or another Python
        pass
