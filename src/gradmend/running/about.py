"""What a report says of its run: the command, the date, the versions."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any


def about(program: str, args: Sequence[str] = (), command: Sequence[str] | None = None) -> dict[str, Any]:
    from gradmend import __version__
    from gradmend.capture.native.loading import form

    torch = sys.modules.get("torch")
    known = str(getattr(torch, "__version__", "")) or _installed("torch")
    return {
        "program": program,
        "command": shlex.join(command if command is not None else [program, *args]),
        "date": datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
        "gradmend": f"{__version__} ({form()})",
        "torch": known,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _installed(package: str) -> str:
    """Trials run in processes of their own: this one may never load torch."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
