"""A scope is one watch() or heal(): what shall follow when backward meets a conflict, and who is told.

Whoever acts on a conflict asks the scope of the Save, or of the thread that runs: a policy is never a swapped method.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from gradmend.capture.graph import engine_threads
from gradmend.capture.sites import Raw

try:
    import cython
except ImportError:
    from gradmend.capture.native import uncompiled as cython

if TYPE_CHECKING:
    from gradmend.capture.graph.calls import BackwardCall, Roots
    from gradmend.capture.ledger.findings import Finding, SilentFinding

# watch: raise. heal: hand out the value as it was saved. plain: do what PyTorch itself would do, and tell nobody.
Policy = Literal["watch", "heal", "plain"]
Tally = list[int]  # of a conflict: its place in the Session, how often it came, bytes kept
Tallies = dict[tuple[Raw, Raw], Tally]  # by the lines of the Save and of the Write


@cython.cclass
class Scope:
    def __init__(
        self,
        policy: Policy,
        tell: Callable[[Finding | SilentFinding], BaseException | None],
        budget: int | None = None,
        paranoid: bool = False,
        healed: Tallies | None = None,
        spared: Tallies | None = None,
        again: Callable[[BackwardCall, Roots, int], None] | None = None,
        refused: Callable[[RuntimeError, Raw], None] | None = None,
    ) -> None:
        self.policy = policy
        self.plain = policy == "plain"
        self.tell = tell
        # Those that are healed already, and those that PyTorch refuses and that are right; None: tell each.
        self.healed = healed
        self.spared = spared
        self.budget = budget
        self.paranoid = paranoid
        # Graphs are kept, and this is told of each line that goes through one again; None: PyTorch frees them.
        self.again = again
        self.left: Raw | None = (
            None  # where it was left: its Saves may live on, and no tap sees what is written then
        )
        self.refused = refused  # told of a call that PyTorch refuses, and that was made by other words
        self.among: list[Scope] = []  # the open ones of the thread that opened it

    @property
    def retain(self) -> bool:
        return self.again is not None and not self.plain

    @contextmanager
    def as_pytorch(self) -> Iterator[None]:
        """As PyTorch itself would do it: the audit's first pass runs so."""
        was = self.policy, self.plain, self.healed, self.spared
        self.policy, self.plain, self.healed, self.spared = "plain", True, None, None
        try:
            yield
        finally:
            self.policy, self.plain, self.healed, self.spared = was


class _Local(threading.local):
    def __init__(self) -> None:
        self.scopes: list[Scope] = []


local = _Local()


@cython.cclass
class _Last:
    """The thread that asked last, and its list, which is its own for as long as it lives."""

    __slots__ = ("scopes", "thread")

    scopes: list[Scope]
    thread: int


_last: _Last = _Last()


def own() -> list[Scope]:
    """The scopes that this thread opened, innermost last."""
    if not cython.compiled:
        return local.scopes
    me = thread_number()  # type: ignore[name-defined]  # noqa: F821  # scopes.pxd has it
    if _last.thread != me:
        _last.scopes = local.scopes
        _last.thread = me
    return _last.scopes


def opened() -> list[Scope]:
    """The scopes of this thread, or of the one whose backward it runs, innermost last."""
    scopes = own()
    if not scopes and (lender := engine_threads.lender()) is not None:
        return lender.scopes
    return scopes


def current() -> Scope | None:
    scopes = opened()
    return scopes[-1] if scopes else None
