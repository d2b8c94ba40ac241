"""Signals held back while a context is entered or left: half of it would stay on for good.

One that comes just as `__exit__` is called, before its first line, is raised there: Python gives no context manager a way round it.
"""

from __future__ import annotations

import signal
from _signal import getsignal  # the module's own make an enum of each number, which takes most of the time
from _signal import signal as set_handler
from types import FrameType
from typing import Any

# Those whose handlers programs make raise: Ctrl-C, a scheduler's end, a time limit, a hang-up, one's own.
_NAMES = ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_NUMBERS = [int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name)]


class HeldBack:
    """From now on, until `release`: then the handlers hear of what came."""

    def __init__(self) -> None:
        """Raises what the handlers raise of a signal that comes before they are held back."""
        self._handlers: dict[int, Any] = {}
        self._came: list[tuple[int, FrameType | None]] = []
        try:
            for number in _NUMBERS:
                handler = getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    set_handler(number, self._note)
        except ValueError:  # handlers run in the main thread alone: no other one is interrupted
            self._handlers.clear()
        except BaseException:
            self.release()
            raise

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append((number, frame))

    def release(self) -> None:
        error: BaseException | None = None
        for number, handler in self._handlers.items():
            try:
                set_handler(number, handler)
            except BaseException as raised:  # by a handler that is back already: the others go back too
                error = raised
        for number, frame in self._came:
            self._handlers[number](number, frame)
        if error is not None:
            raise error
