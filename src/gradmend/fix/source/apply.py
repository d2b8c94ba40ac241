"""Write proven edits: whole files at once, only over the text that was analysed, mode and encoding kept."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping

from gradmend.errors import UsageError
from gradmend.fix.source.text import Text


def apply(original: Mapping[str, Text], sources: Mapping[str, str]) -> None:
    """Replace every file or none."""
    ready: list[tuple[str, str, bytes]] = []
    try:
        for file, text in sources.items():
            target = os.path.realpath(file)
            before = original[file].encode(original[file].text)
            with open(target, "rb") as handle:
                if handle.read() != before:
                    raise UsageError(
                        f"{file} has changed since it was analysed: nothing was written, run fix again"
                    )
            ready.append((target, _beside(target, original[file].encode(text)), before))
    except OSError as why:
        _drop(ready)
        raise UsageError(f"can't write next to {why.filename}: {why.strerror}: nothing was written") from None
    except BaseException:
        _drop(ready)
        raise
    done: list[tuple[str, bytes]] = []
    try:
        for target, scratch, before in ready:
            os.replace(scratch, target)
            done.append((target, before))
    except BaseException:
        for target, before in done:
            os.replace(_beside(target, before), target)
        _drop(ready)
        raise


def _beside(target: str, content: bytes) -> str:
    handle, scratch = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".gradmend-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(target, scratch)
    except BaseException:
        os.unlink(scratch)
        raise
    return scratch


def _drop(ready: list[tuple[str, str, bytes]]) -> None:
    for _, scratch, _ in ready:
        if os.path.exists(scratch):
            os.unlink(scratch)
