"""Which of a node's outputs the backward that is running can bring a gradient to.

`linalg.eigvalsh` is `eigh` whose eigenvectors nobody uses: its backward then never looks at the eigenvalues. The engine
does not show a node's incoming gradients while it unpacks, but the way from the roots does: an output that no
edge of this graph leads to has none, and no hook may bring one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

from gradmend.capture.graph import engine_threads
from gradmend.capture.graph.nodes import edges

_ENGINE = ("_engine_run_backward", "t_outputs")  # of torch.autograd.graph, seen on 2.13


def reached(node: Any) -> frozenset[int] | None:
    """The outputs of `node` that a gradient may arrive for; None where that can't be told.

    It can't for a backward that C++ started.
    """
    roots = _roots()
    if roots is None:
        return None
    seen: set[Any] = set()
    found: set[int] = set()
    todo: list[tuple[Any, int]] = [_edge(root) for root in roots]
    while todo:
        at, number = todo.pop()
        if at is None:
            continue
        if at == node:
            found.add(number)
        elif at not in seen:
            seen.add(at)
            todo += edges(at)
    # Not on the way from these roots at all: another backward is running, inside this one.
    return frozenset(found) or None


def _edge(root: Any) -> tuple[Any, int]:
    """Of a tensor, or of a GradientEdge."""
    if hasattr(root, "grad_fn"):
        return root.grad_fn, root.output_nr
    return root.node, root.output_nr


def _roots() -> Iterable[Any] | None:
    found = _given(sys._getframe(1))
    lender = engine_threads.lender() if found is None else None
    # A device's backward runs in a thread without callers: they wait in the thread for which it works.
    return _given(sys._current_frames().get(lender.thread)) if lender is not None else found


def _given(frame: FrameType | None) -> Iterable[Any] | None:
    name, roots = _ENGINE
    while frame is not None:
        if frame.f_code.co_name == name and frame.f_globals.get("__name__") == "torch.autograd.graph":
            found = frame.f_locals.get(roots)
            return found if isinstance(found, (tuple, list)) else None
        frame = frame.f_back
    return None
