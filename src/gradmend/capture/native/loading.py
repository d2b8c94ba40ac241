"""Compiled or pure Python: which of the two this process runs is decided here, once, before anything of capture is loaded.

Two things are built where there is a compiler (hatch_build.py): `_edge`, C that touches frames and memory (edge.py has the
same in Python), and the modules in HOT, which are the very .py files, typed by the .pxd beside them and compiled by Cython.
They lie in built/, all of them or none, with the digests of the sources they were made from: a source that was edited since
runs as Python, and so do all others. `GRADMEND_PURE=1` does without; 0 or nothing does not.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from hashlib import sha256
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

CAPTURE = Path(__file__).parents[1]
BUILT = Path(__file__).parent / "built"
SUFFIX = EXTENSION_SUFFIXES[0]  # of this Python: those of several may lie side by side
MADE_OF = BUILT / f"made_of{SUFFIX}.json"
EDGE = "gradmend.capture.native._edge"
# What runs at every op, at every backward call and at every step.
HOT = (
    "memory.layouts",
    "memory.undo",
    "ledger.lock",
    "ledger.scopes",
    "ledger.entries",
    "ledger.findings",
    "ledger.keeping",
    "ledger.judging",
    "ledger.ledger",
    "edits.live_edits",
    "taps.hub",
    "hooks.saved_tensors",
    "graph.calls",
    "hooks.backward_calls",
    "hooks.optimizer_steps",
    "recorder",
)


def wants_pure() -> bool:
    return os.environ.get("GRADMEND_PURE", "0") not in ("", "0")


def sources() -> list[Path]:
    """All that goes into what is built."""
    hot = [CAPTURE.joinpath(*name.split(".")).with_suffix(end) for name in HOT for end in (".py", ".pxd")]
    return [p for p in hot if p.exists()] + sorted(p for p in Path(__file__).parent.glob("*.[ch]"))


def digest() -> str:
    """Of all sources: what was built of others is none of ours."""
    made = sha256()
    for path in sources():
        made.update(path.relative_to(CAPTURE).as_posix().encode() + b"\0" + path.read_bytes())
    return made.hexdigest()


def library(name: str) -> Path | None:
    """The file built of this module for this Python."""
    path = BUILT / f"{name}{SUFFIX}"
    return path if path.exists() else None


def form() -> str:
    """For people: which of the two, and why."""
    if wants_pure():
        return "pure Python, as GRADMEND_PURE says"
    if library(EDGE) is None or any(library(f"gradmend.capture.{name}") is None for name in HOT):
        return "pure Python, slower: no compiler was found when it was installed, or it failed"
    if not MADE_OF.exists() or json.loads(MADE_OF.read_text()) != digest():
        return "pure Python, slower: sources changed since they were compiled; install it again"
    return "compiled"


class _Finder(MetaPathFinder):
    """Finds the modules in HOT as they were built."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith("gradmend.capture."):
            return None
        if name != EDGE and name.removeprefix("gradmend.capture.") not in HOT:
            return None
        file = library(name)
        if file is None:
            return None
        return spec_from_file_location(name, file, loader=ExtensionFileLoader(name, str(file)))


COMPILED = form() == "compiled"
edge: ModuleType | None = None
if COMPILED:
    sys.meta_path.insert(0, _Finder())
    edge = import_module(EDGE)
