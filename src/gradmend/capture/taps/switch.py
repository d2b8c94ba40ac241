"""Arming and disarming the taps. Every name goes back as it was, inherited ones by deletion."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import repeat
from operator import is_
from types import ModuleType
from typing import Any, NamedTuple

import torch

from gradmend.capture.taps import caches, homes, pickled
from gradmend.uncollected import uncollected

_ABSENT = object()
# Held by whoever arms or disarms, for all that belongs to it: threads enter and leave contexts side by side.
lock = threading.RLock()
_armed = 0
_filled: dict[int, int] = {}


def arm() -> None:
    """Patch every name, once however often it is asked for."""
    global _armed
    with lock:
        _armed += 1
        if _armed > 1:
            return
        with uncollected():
            homes.patches()
        caches.fill()
        _filled.update(caches.sizes())
        _put_on()
        pickled.arm()
        if "torch._dynamo" not in sys.modules:
            sys.meta_path.insert(0, _finder)


def disarm() -> None:
    global _armed
    with lock:
        if _armed == 0:
            return
        _armed -= 1
        if _armed:
            return
        _take_off()
        pickled.disarm()
        if _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
        caches.empty_newer(_filled)
        _filled.clear()


class _Owner(NamedTuple):
    """A module or class: what it gets by these names, and what it had by them while it has ours."""

    owner: Any
    taps: dict[str, Any]
    own: list[Any]  # filled and emptied, never made anew: the collector would look at two thousand names


class _Answers:
    """What torch._VF asks for every name that it does not have itself: with our taps."""

    def __init__(self, asked: Any, taps: dict[str, Any]) -> None:
        self._asked = asked
        vars(self).update(taps)

    def __getattr__(self, name: str) -> Any:
        if name == "_asked":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._asked, name)


@cache
def _owners() -> list[_Owner]:
    found: dict[Any, _Owner] = {}
    for owner, name, tap in homes.patches():
        found.setdefault(owner, _Owner(owner, {}, [])).taps[name] = tap
    forwarding: Any = torch._VF
    taps = found[forwarding].taps
    # One name in place of 675 that would have to be deleted again, each by itself.
    found[forwarding] = _Owner(forwarding, {"vf": _Answers(forwarding.vf, taps)}, [])
    # PyTorch looks up here, on a builtin class, the function that it gives to a `__torch_function__`.
    functions = type(torch._C._VariableFunctions)
    had, taps = vars(functions), found[torch].taps
    shared = {
        n: staticmethod(t) for n, t in taps.items() if n in had and getattr(torch, n) is had[n].__func__
    }
    found[functions] = _Owner(functions, shared, [])
    return list(found.values())


def _space(owner: Any) -> dict[str, Any] | None:
    """The dict to write to, in a fraction of what setattr takes; None where only setattr may."""
    if isinstance(owner, ModuleType):
        return vars(owner)
    if owner is type(torch._C._VariableFunctions):  # takes no attributes: what is under its read-only view
        found: dict[str, Any] = gc.get_referents(vars(owner))[0]
        return found
    return None


def _without_ours(owner: Any, name: str, value: Any, tap: Any) -> Any:
    """What a name had before a program that had patched it inside an earlier scope put our tap back after it."""
    if value is not tap:
        return value
    original = tap.__gradmend_original__
    inherited = isinstance(owner, type) and any(
        vars(base).get(name) is original for base in owner.__mro__[1:]
    )
    return _ABSENT if inherited else original


def _written(owner: Any) -> None:
    if isinstance(owner, type):
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


def _put_on() -> None:
    for owner, taps, own in _owners():
        now = vars(owner) if hasattr(owner, "__dict__") else {}
        own[:] = map(now.get, taps, repeat(_ABSENT))
        if any(map(is_, own, taps.values())):
            own[:] = map(_without_ours, repeat(owner), taps, own, taps.values())
        space = _space(owner)
        if space is not None:
            space.update(taps)
            _written(owner)
        else:
            for name, tap in taps.items():
                setattr(owner, name, tap)


def _take_off() -> None:
    for owner, taps, own in reversed(_owners()):
        space = _space(owner)
        if space is not None and _ABSENT not in own:
            space.update(zip(taps, own, strict=False))
            own.clear()
            _written(owner)
        for name, value in zip(taps, own, strict=False):
            if value is not _ABSENT:
                setattr(owner, name, value)
            elif space is not None:
                del space[name]
            else:
                delattr(owner, name)
        own.clear()


@contextmanager
def unpatched() -> Iterator[None]:
    """Every name as torch made it, for a moment."""
    with lock:
        on = any(one.own for one in _owners())
        _take_off()
        try:
            yield
        finally:
            if on:
                _put_on()


def armed() -> bool:
    return _armed > 0


_finder = caches.DynamoImport(unpatched)
