"""Several processes at once (`torchrun`): a report for each rank, kept also when another rank's end takes us down.

torchrun --nproc-per-node 2 -m gradmend run --report OUT.json train.py
gradmend report OUT.rank*.json
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# A rank that is being told off may be about to tell the same story: give it this long to do so itself.
_PATIENCE = 3.0


def rank() -> int | None:
    """This process's rank; None where it is alone."""
    try:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            return int(os.environ["RANK"])
    except (KeyError, ValueError):
        pass
    return None


def own_path(path: str | None) -> str | None:
    """OUT.json -> OUT.rank1.json, so that no rank overwrites another's report."""
    number = rank()
    if path is None or number is None:
        return path
    stem, extension = os.path.splitext(path)
    return f"{stem}.rank{number}{extension}"


@contextmanager
def last_words(write: Callable[[], None]) -> Iterator[None]:
    """When one rank fails, torchrun ends the others by SIGTERM, often inside a collective that never returns.

    Python runs no handler there, but the signal's number still arrives at a socket: a thread reads it and writes
    the report.
    """
    if rank() is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    hear, tell = socket.socketpair()
    tell.setblocking(False)
    ended = threading.Event()

    def listen() -> None:
        while True:
            number = hear.recv(1)
            if not number or ended.is_set():
                return
            if number[0] == signal.SIGTERM and not ended.wait(_PATIENCE):
                write()
                os.kill(os.getpid(), signal.SIGKILL)

    previous = signal.signal(signal.SIGTERM, lambda *_: None)
    old = signal.set_wakeup_fd(tell.fileno(), warn_on_full_buffer=False)
    listener = threading.Thread(target=listen, name="gradmend-last-words", daemon=True)
    listener.start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(old)
        signal.signal(signal.SIGTERM, previous)
        tell.close()
        listener.join(1.0)
        hear.close()
