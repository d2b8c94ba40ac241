"""Who else gets the gradient that the node now running was given: the other inputs of the node that sent it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from gradmend.capture.edits.arrivals import site_of
from gradmend.capture.graph import nodes
from gradmend.capture.sites import Raw

# The roots of the backward calls that are running, by their ticks, innermost last.
roots: dict[int, Sequence[Any]] = {}


def sibling() -> tuple[str, Raw]:
    """Name and line of a branch beside that of the node now running; ("", ()) where none is found."""
    node = nodes.current()
    if node is None or not roots:
        return "", ()
    best: tuple[str, Raw] = ("", ())
    for sender in senders(node):
        for other, _ in sender.next_functions:
            if other is not None and other is not node:
                found = (other.name(), site_of(other))
                if found[1]:
                    return found
                best = found
    return best


def senders(node: Any, most: float = math.inf) -> list[Any]:
    """The nodes that send it a gradient in the backward that runs, found by looking at so many at most."""
    stack = [
        r.grad_fn if isinstance(r, torch.Tensor) else getattr(r, "node", None)
        for r in next(reversed(roots.values()))
    ]
    seen: set[Any] = set()
    found = []
    while stack and len(seen) < most:
        one = stack.pop()
        if one is None or one in seen:
            continue
        seen.add(one)
        below = [n for n, _ in nodes.edges(one)]
        if any(n is node for n in below):
            found.append(one)
        stack.extend(below)
    return found
