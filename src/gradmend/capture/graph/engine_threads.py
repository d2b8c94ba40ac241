"""Threads that autograd starts: whose work they do.

The backward of a device that is not the CPU runs in a thread of the engine's. It has no Python caller and none of
our thread's state, but PyTorch hands it its own state of the thread that called backward(), with what was stashed in it.
"""

from __future__ import annotations

import atexit
import time
from dataclasses import dataclass
from functools import cache
from threading import get_ident
from typing import Any

import torch

_KEY = "gradmend"
# A torch without these is one that nobody has tried: the canary `threads` finds it.
_stash: Any = getattr(torch._C, "_stash_obj_in_tls", lambda key, value: None)
_is_known: Any = getattr(torch._C, "_is_key_in_tls", lambda key: False)
_get: Any = getattr(torch._C, "_get_obj_in_tls", None)


@dataclass(frozen=True, slots=True)
class Lender:
    """A thread that calls backward(), and the list of its scopes."""

    thread: int
    scopes: list[Any]


def lend(scopes: list[Any]) -> None:
    """From now on, the engine's threads that work for this one know its scopes. The list stays the same for its life."""
    _stash(_KEY, Lender(get_ident(), scopes))
    _wait_at_exit()


def lender() -> Lender | None:
    """The thread for which this one works, if that is another."""
    if not _is_known(_KEY):
        return None
    found: Lender = _get(_KEY)
    return None if found.thread == get_ident() else found


@cache
def _wait_at_exit() -> None:
    atexit.register(_wait)


def _wait() -> None:
    """A device's thread lets go of a graph a little after backward() has returned, and of the Saves in it, which are Python's.
    Python ends a thread that asks for it while the program is ending, and C++ then aborts the process: so give it time.
    """
    if torch.accelerator.is_available():
        time.sleep(0.1)
