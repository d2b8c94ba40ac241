"""heal(retain=True): no backward frees its graph, so that a later one may go through it again.

A graph lives until nobody holds a tensor of it. What an optimizer or anybody else writes in between does no harm: the
ledger hands out each value as it was saved. PyTorch's refusal ("backward through the graph a second time") is told all the
same, once for each line, and so is a graph that grows from call to call. backward_calls.py keeps the graph.
"""

from __future__ import annotations

from gradmend.capture.graph import calls
from gradmend.capture.graph.calls import BackwardCall, Roots
from gradmend.capture.ledger import scopes
from gradmend.capture.sites import Raw

_LOOKED_AT = 16  # calls that went through the same graph again, then its growth is judged
_GROWN = 4

_sizes: dict[Raw, list[int]] = {}  # backward calls that went through a graph again, by line: how many nodes


def forget() -> None:
    _sizes.clear()


def look(call: BackwardCall, roots: Roots) -> None:
    """A backward is done: did it go where PyTorch would have stopped it?"""
    scope = scopes.current()
    if scope is None or scope.again is None or call.outcome != "done":
        return
    visited = call.visited.keys()
    earlier = [c for c in calls.history if c is not call and c.outcome == "done" and not c.retain]
    if not any(not visited.isdisjoint(c.visited) for c in earlier):
        return
    sizes = _sizes.setdefault(call.raw, [])
    sizes.append(len(visited))
    if len(sizes) == 1 or (len(sizes) == _LOOKED_AT and sizes[-1] >= _GROWN * sizes[0]):
        scope.again(call, roots, len(sizes))
