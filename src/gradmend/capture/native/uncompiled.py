"""What Cython's `cython` module is to a file that runs as Python: decorators that change nothing."""

from __future__ import annotations

from typing import TypeVar

_T = TypeVar("_T", bound=type)
compiled = False


def cclass(kind: _T) -> _T:
    """Compiled: a struct, with the attributes that the .pxd beside its file declares."""
    return kind


def no_gc(kind: _T) -> _T:
    """Compiled: none of the garbage collector's. Thousands are made, and nothing that they hold leads back to them."""
    return kind
