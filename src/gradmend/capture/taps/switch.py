"""Arming and disarming the taps. Every name goes back as it was, inherited ones by deletion."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradmend.capture.taps import caches, homes
from gradmend.uncollected import uncollected

_ABSENT = object()
_lock = threading.RLock()
_armed = 0
_undo: list[tuple[Any, str, Any]] = []
_filled: dict[int, int] = {}


def arm() -> None:
    """Patch every name, once however often it is asked for."""
    global _armed
    with _lock:
        _armed += 1
        if _armed > 1:
            return
        with uncollected():
            homes.patches()
        caches.fill()
        _filled.update(caches.sizes())
        _put_on()
        if "torch._dynamo" not in sys.modules:
            sys.meta_path.insert(0, _finder)


def disarm() -> None:
    global _armed
    with _lock:
        if _armed == 0:
            return
        _armed -= 1
        if _armed:
            return
        _take_off()
        if _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
        caches.empty_newer(_filled)
        _filled.clear()


def _put_on() -> None:
    for owner, name, value in homes.patches():
        own = vars(owner).get(name, _ABSENT) if hasattr(owner, "__dict__") else _ABSENT
        _undo.append((owner, name, own))
        setattr(owner, name, value)


def _take_off() -> None:
    while _undo:
        owner, name, own = _undo.pop()
        if own is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


@contextmanager
def unpatched() -> Iterator[None]:
    """Every name as torch made it, for a moment."""
    with _lock:
        on = bool(_undo)
        _take_off()
        try:
            yield
        finally:
            if on:
                _put_on()


def armed() -> bool:
    return _armed > 0


_finder = caches.DynamoImport(unpatched)
