"""What a command prints, or can't: a closed or full stdout, letters that it can't show, Ctrl-C, a folder that is gone."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator

from gradmend.errors import UsageError


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Whatever is wrong with stdout or the current folder is told in one line: UsageError."""
    if sys.stdout is None:
        raise UsageError("stdout is closed: there is nowhere to write to")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a letter that it can't show stops nothing
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        if os.environ.get("GRADMEND_DEBUG"):
            raise
        _unwritable()
        raise UsageError(_why(error)) from None
    except KeyboardInterrupt:
        print("gradmend: stopped", file=sys.stderr)
        raise SystemExit(130) from None


def _why(error: OSError) -> str:
    try:
        os.getcwd()
    except OSError:
        return "the current folder is gone: change to one that is there"
    if error.filename is None:
        return f"can't write to stdout: {error.strerror or error}"
    return f"{error.filename}: {error.strerror or error}"


def _unwritable() -> None:
    """What stdout still holds goes nowhere, else Python tries once more when it ends."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
