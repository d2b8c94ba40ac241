"""Torch's functions are pickled by their names, and under these names pickle finds our taps: "not the same object".

So while the taps are on, what they stand for is pickled as a look-up by the standard library, which whoever loads it can do;
and a tap that the program kept is pickled as torch's own function, then and later.
"""

from __future__ import annotations

import copyreg
import sys
from functools import cache
from pkgutil import resolve_name
from types import BuiltinFunctionType
from typing import Any

from gradmend.capture import edge
from gradmend.capture.taps import homes

_Function = edge.chosen("Function", None)
_table: dict[type, Any] = copyreg.dispatch_table
_programs: list[Any] = []  # what the table had of builtins


def arm() -> None:
    if BuiltinFunctionType in _table:
        _programs.append(_table[BuiltinFunctionType])
    _table[BuiltinFunctionType] = _reduced
    if _Function is not None:
        _table[_Function] = _as_original


def disarm() -> None:
    """Builtins as before; taps that the program kept stay what they stand for."""
    if _table.get(BuiltinFunctionType) is _reduced:
        del _table[BuiltinFunctionType]
        if _programs:
            _table[BuiltinFunctionType] = _programs[0]
    _programs.clear()


@cache
def _originals() -> set[int]:
    """By id: torch keeps them for ever."""
    return {id(getattr(patch.value, "__gradmend_original__", None)) for patch in homes.patches()}


def _reduced(builtin: Any) -> Any:
    if id(builtin) in _originals():
        return _by_name(builtin)
    return _programs[0](builtin) if _programs else builtin.__reduce_ex__(2)


def _as_original(tap: Any) -> Any:
    name = tap.__reduce_ex__(2)
    if isinstance(name, str) and getattr(sys.modules.get(tap.__module__), name, None) is tap:
        return name  # pickle finds it: the file is the one that PyTorch alone would write
    return _by_name(tap.__gradmend_original__)


def _by_name(builtin: Any) -> Any:
    found = builtin.__reduce_ex__(2)
    return (resolve_name, (f"{builtin.__module__}:{found}",)) if isinstance(found, str) else found
