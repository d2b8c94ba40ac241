"""Nodes of the autograd graph as Python objects, and graphs with such objects that can be freed at any depth.

PyTorch frees a graph in a loop, however deep it is. A node that was once asked for from Python (`grad_fn`,
`next_functions`) has an object that lives as long as the node, and such nodes are freed by recursion: a chain of some
50,000 of them ends the process (seen on 2.13 and 2.15). So nothing that happens at every op asks for a node, and
whoever asks does it here.

Of a graph that is walked, every few nodes hold those below them in their metadata too. PyTorch lets go of a node's edges
before its metadata, so it is the metadata that goes last, and what it holds is let go of in a loop.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

Edges = tuple[
    tuple[Any, int], ...
]  # nodes, and which of their outputs; None for an input that needs no gradient

_current = torch._C._current_autograd_node
_KEY = "gradmend.below"
_SPREAD = 16  # one node in so many holds those below it, or is counted
# So many of 1,000 nodes that were asked for singly and live: freed by recursion, they take some 200 KB of stack.
_MOST = 1000 // _SPREAD


class _Mark:
    """Lives as long as its node does."""

    __slots__ = ()
    living = 0

    def __init__(self) -> None:
        _Mark.living += 1

    def __del__(self) -> None:
        _Mark.living -= 1


class _Letting(threading.local):
    """What this thread has to let go of. CPython would do that for nested tuples, since 3.12 at thousands of levels only."""

    def __init__(self) -> None:
        self.waiting: list[object] = []
        self.busy = False


_letting = _Letting()


class _Below:
    """The edges of a node. When it goes, what they lead to goes after it and not inside of it."""

    __slots__ = ("edges",)

    def __init__(self, edges: Edges) -> None:
        self.edges = edges

    def __del__(self, letting: _Letting = _letting) -> None:
        letting.waiting.append(self.edges)
        del self.edges
        if letting.busy:
            return
        letting.busy = True
        try:
            while letting.waiting:
                letting.waiting.pop()
        finally:
            letting.busy = False


def current() -> Any:
    """The node that this thread's backward runs; None outside of one."""
    return known(_current())


def known(node: Any) -> Any:
    """The node itself, which Python has asked for by itself rather than on a walk."""
    if node is not None:
        number(node)
    return node


def number(node: Any) -> int:
    """The sequence number of such a node: nodes count up as a thread makes them."""
    found: int = node._sequence_nr()
    if _chosen(found):
        metadata = node.metadata
        if _KEY not in metadata:
            metadata[_KEY] = _Mark()
            if _Mark.living > _MOST:
                _tie_all(node)
    return found


def edges(node: Any) -> Edges:
    """The `next_functions` of a node that is met on a walk through its graph."""
    found: Edges = node.next_functions
    if found and _chosen(node._sequence_nr()):
        node.metadata[_KEY] = _Below(found)
    return found


def _chosen(number: int) -> bool:
    # A hash, not a remainder: two chains made in turns have odd numbers here and even ones there.
    return (number * 0x9E3779B97F4A7C15 >> 32) % _SPREAD == 0


def start(root: Any) -> Any:
    """The node of a tensor or of a GradientEdge; None of a leaf."""
    return root.grad_fn if isinstance(root, torch.Tensor) else getattr(root, "node", None)


def walk(
    starts: Iterable[Any], most: float = math.inf, into: Callable[[Any], bool] | None = None
) -> Iterator[tuple[Any, Edges]]:
    """Each node from these on, and its edges: so many nodes at most, and below the first ones only what it may go into."""
    todo = list(starts)
    seen: set[Any] = set()  # holds the nodes, so that their identity stays
    while todo and len(seen) < most:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        below = edges(node)
        yield node, below
        for one, _ in below:
            if one is not None and (into is None or into(one)):
                todo.append(one)


def _tie_all(node: Any) -> None:
    """Walk down to where a walk has been before."""
    for _ in walk(
        [node], into=lambda n: not (_chosen(n._sequence_nr()) and type(n.metadata.get(_KEY)) is _Below)
    ):
        pass
    node.metadata[_KEY] = _Below(node.next_functions)
