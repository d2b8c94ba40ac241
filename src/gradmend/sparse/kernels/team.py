"""Who runs a compiled kernel: this thread alone, or with a few of our own beside it.

The kernels release the GIL and work on a share of the rows, so plain Python threads do: no threading layer of
numba's is ever loaded (its workqueue crashes under concurrent calls, OpenMP kills a forked child). A kernel's
last two arguments are (part, parts).
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

_SHARES = 8  # parts a thread: a thread that is held up leaves the rest to the others
ALONE = 1 << 18  # multiply-adds below which waking another thread costs more than it gives

_pool: ThreadPoolExecutor | None = None
_pool_size = 0
_forked = False
_local = threading.local()


def _after_fork() -> None:
    # The pool's threads did not come along. A child is usually one of many workers: it works alone.
    global _pool, _pool_size, _forked
    _pool, _pool_size, _forked = None, 0, True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _helpers(n: int) -> ThreadPoolExecutor:
    global _pool, _pool_size
    if _pool is None or _pool_size < n:
        _pool, _pool_size = ThreadPoolExecutor(n, thread_name_prefix="gradmend-kernel"), n
    return _pool


@contextmanager
def torch_alone() -> Iterator[None]:
    """torch's own parallel ops hang in a forked child once OpenMP has run in its parent: here they run on one thread."""
    threads = torch.get_num_threads()
    if not _forked or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def alone(f: Callable[..., Any], *args: Any) -> Any:
    """A kernel made of torch's ops, for which the same holds: its embedding_bag wakes threads for any length."""
    if not _forked:
        return f(*args)
    with torch_alone():
        return f(*args)


def forked() -> bool:
    return _forked


@contextmanager
def short() -> Iterator[None]:
    """torch's ops on this thread alone, for work so short that to wait for another costs more; kernels share as before."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    before, _local.threads = getattr(_local, "threads", 0), threads
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _local.threads = before


def threads_for(work: int) -> int:
    """How many threads a call of so many multiply-adds is worth."""
    if _forked or work < ALONE:
        return 1
    return getattr(_local, "threads", 0) or torch.get_num_threads()


def run(kernel: Callable[..., Any], work: int, *args: Any, named: bool = False) -> None:
    """Call the kernel on all its parts; `work` is roughly the number of multiply-adds.

    With `named` it is told which of threads_for(work) threads it is on, ahead of (part, parts).
    """
    threads = threads_for(work)
    if threads == 1:
        kernel(*args, *((0,) if named else ()), 0, 1)
        return
    shares = threads * _SHARES
    ticket = itertools.count()

    def take(who: int) -> None:
        mine = (*args, who) if named else args
        while (part := next(ticket)) < shares:
            kernel(*mine, part, shares)

    try:
        others = [_helpers(threads - 1).submit(take, who) for who in range(1, threads)]
    except RuntimeError:  # the interpreter is shutting down: no new threads
        others = []
    take(0)
    for other in others:
        if not other.cancel():  # one that no core was free for has nothing left to do: nobody waits for it
            other.result()
