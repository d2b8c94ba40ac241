"""Threads that autograd starts: whose work they do.

The backward of a device that is not the CPU runs in a thread of the engine's. It has no Python caller and none of
our thread's state, but PyTorch hands it its own state of the thread that called backward(), with what was stashed in it.
"""

from __future__ import annotations

import atexit
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import get_ident, get_native_id
from typing import Any

import torch

_KEY = "gradmend"
_TASKS = Path("/proc/self/task")  # of Linux; elsewhere there is none to read
_lenders: set[int] = set()
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
    _lenders.add(get_native_id())
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
    """A device's thread lets go of a graph a little after backward() has returned, and of the Saves in it, which are Python's;
    a thread of gloo's lets go of a collective a little after its result is there; a thread of the program's that entered a
    context lets go of what was stashed in it a little after it was joined. Python ends a thread that asks for it while the
    program is ending, and C++ then aborts the process ("terminate called without an active exception", plain PyTorch
    too): so give them time.
    """
    if torch.accelerator.is_available() or _has_process_group():
        time.sleep(0.1)
    for _ in range(1000 if _TASKS.exists() else 100):
        if not _some_are_ending():
            break
        time.sleep(0.001)


def _some_are_ending() -> bool:
    """Whether threads of the program's that entered a context are joined, and may not be gone."""
    joined = _lenders - {t.native_id for t in threading.enumerate()}
    return any((_TASKS / str(one)).exists() for one in joined) if _TASKS.exists() else bool(joined)


def _has_process_group() -> bool:
    """One that was destroyed lives on, with its threads, while something holds it: DDP does, in cycles."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return True
    names = _TASKS.glob("*/comm")
    with suppress(OSError):  # a thread that ends meanwhile
        return any(name.read_text().startswith("pt_gloo") for name in names)
    return True
