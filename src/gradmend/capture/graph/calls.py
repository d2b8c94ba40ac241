"""The backward calls of a run: those that run now, and the last ones, for the stories told after one of them fails.

A record of a call holds numbers and raw sites only: a node or a tensor in it would keep a whole graph alive.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Container, Iterable, Sequence
from threading import get_ident
from typing import Any, Literal

from gradmend.capture.graph import engine_threads
from gradmend.capture.sites import Raw, raw_from, raw_here, resolve
from gradmend.model import Frame, Site

try:
    import cython
except ImportError:
    from gradmend.capture.native import uncompiled as cython

_CALLS_KEPT = 64
_NODES_KEPT = 4096  # in one call


@cython.cclass
class BackwardCall:
    """One backward: where it was called, from which roots, and what became of it."""

    __slots__ = ("outcome", "raw", "retain", "roots", "seeds", "thread", "tick", "visited")

    def __init__(self, tick: int, raw: Raw, roots: tuple[int, ...], retain: bool, thread: int = 0) -> None:
        self.tick = tick
        self.raw = raw
        self.roots = roots  # sequence numbers of the roots' nodes
        self.retain = retain
        self.thread = thread
        self.outcome: Literal["running", "done", "failed"] = "running"
        # Sequence number of each node that asked for a Save -> where that Save was made. Sequence numbers count
        # up with each node that a thread makes, so they order nodes and outlive them. The number is that of the newest
        # node when the Save was made, see who_ran().
        self.visited: dict[int, Raw] = {}
        # Storages of the gradients that backward() itself was given, while watched.
        self.seeds: tuple[int, ...] = ()

    @property
    def site(self) -> Site:
        return resolve(self.raw)

    @property
    def frame(self) -> Frame | None:
        return self.site.user


Roots = Sequence[Any]  # tensors or GradientEdges

history: deque[BackwardCall] = deque(maxlen=_CALLS_KEPT)
running: list[BackwardCall] = []  # innermost last: a hook may start a backward of its own


def current() -> BackwardCall | None:
    """The call that this thread runs: its own, or that of the thread for which it works."""
    if len(running) > 1:
        lender = engine_threads.lender()
        found = _newest(get_ident()) or (_newest(lender.thread) if lender is not None else None)
        if found is not None:
            return found
    return running[-1] if running else None


def _newest(thread: int) -> BackwardCall | None:
    return next((call for call in reversed(running) if call.thread == thread), None)


def where() -> Raw:
    """The call chain above. A thread of the engine's has no more than a hook in it: the chain goes on with
    that of the backward for which it works."""
    raw = raw_here()
    lender = engine_threads.lender()
    if lender is None:
        return raw
    call = _newest(lender.thread)
    return raw + (raw_from(sys._current_frames().get(lender.thread)) if call is None else call.raw)


def visit(number: int, raw: Raw) -> None:
    """The node now running asks for a Save made at `raw`. Called from the unpack hook, so it must be cheap."""
    call = running[0] if len(running) == 1 else current()
    if call is not None and not call.retain and len(call.visited) < _NODES_KEPT:
        call.visited[number] = raw


def who_ran(
    number: int, calls: Iterable[BackwardCall], others: Container[int]
) -> tuple[BackwardCall, Raw] | None:
    """The call that asked for a Save of the node of this number, and where that was made; None if none is known.

    To ask a node for its number at each Save would make an object of it (nodes.py), so what counts is the newest
    node when the Save was made. That is the node itself but for `x.pow_(2)`, which saves a clone: its node comes in
    between, and is none of the `others` of the graph.
    """
    for one in (number, number + 1):
        if one == number or one not in others:
            for call in calls:
                raw = call.visited.get(one)
                if raw is not None:
                    return call, raw
    return None
