"""What the backward that is running can bring to a node: for which of its outputs, and from whom.

`linalg.eigvalsh` is `eigh` whose eigenvectors nobody uses: its backward then never looks at the eigenvalues. The engine
does not show a node's incoming gradients while it unpacks, but the way from the roots does: an output that no
edge of this graph leads to has none, and no hook may bring one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from gradmend.capture.graph import engine_threads
from gradmend.capture.graph.nodes import start, walk

_ENGINE = ("_engine_run_backward", "t_outputs")  # of torch.autograd.graph, seen on 2.13


def reached(node: Any) -> frozenset[int] | None:
    """The outputs of `node` that a gradient may arrive for; None where that can't be told.

    It can't for a backward that C++ started.
    """
    roots = _roots()
    found = {root.output_nr for root in roots if start(root) == node}
    for _, below in walk(map(start, roots), into=lambda n: n != node):
        for n, number in below:
            if n == node:
                found.add(number)
    # Not on the way from these roots at all: another backward is running, inside this one.
    return frozenset(found) or None


def senders(node: Any, most: float = math.inf) -> list[Any]:
    """The nodes that send it a gradient, found by looking at so many at most: first among the newer ones, as nearly all are.

    Those of another thread, and of a leaf, need not be.
    """
    roots, number = [start(root) for root in _roots()], node._sequence_nr()
    for into in (lambda n: n._sequence_nr() > number, None):
        found = [n for n, below in walk(roots, most, into) if any(one == node for one, _ in below)]
        if found:
            return found
    return []


def _roots() -> Sequence[Any]:
    """Tensors or GradientEdges; nothing where none are found."""
    found = _given(sys._getframe(1))
    lender = engine_threads.lender() if found is None else None
    # A device's backward runs in a thread without callers: they wait in the thread for which it works.
    return (_given(sys._current_frames().get(lender.thread)) if lender is not None else found) or ()


def _given(frame: FrameType | None) -> Sequence[Any] | None:
    name, roots = _ENGINE
    while frame is not None:
        if frame.f_code.co_name == name and frame.f_globals.get("__name__") == "torch.autograd.graph":
            found = frame.f_locals.get(roots)
            return found if isinstance(found, (tuple, list)) else None
        frame = frame.f_back
    return None
