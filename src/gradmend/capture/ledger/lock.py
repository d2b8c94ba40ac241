"""The ledger's lock. It is taken several times at every op, and hardly ever by two threads at once."""

from __future__ import annotations

from threading import RLock
from time import sleep

try:
    import cython
except ImportError:
    from gradmend.capture.native import uncompiled as cython

if not cython.compiled:
    from threading import get_ident

_A_MOMENT = 5e-5


@cython.no_gc
@cython.cclass
class Lock:
    """An RLock. Compiled, to take it is two lines between which Python changes no thread, in place of a call of RLock's."""

    __slots__ = ("_depth", "_owner", "_plain")

    def __init__(self) -> None:
        self._plain = RLock()
        self._owner = 0
        self._depth = 0

    def take(self, wait: bool = True) -> bool:
        if not cython.compiled:
            return self._plain.acquire(wait)
        me = get_ident()
        while self._depth and self._owner != me:
            if not wait:
                return False
            sleep(_A_MOMENT)
        self._owner = me
        self._depth += 1
        return True

    def give(self) -> None:
        if not cython.compiled:
            return self._plain.release()
        self._depth -= 1

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *raised: object) -> None:
        self.give()
