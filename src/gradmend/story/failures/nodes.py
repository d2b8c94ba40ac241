"""Walking a graph from its roots, and asking a node what it kept, without unpacking anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gradmend.capture.graph.nodes import edges, start
from gradmend.capture.graph.reads import packed, slots

_TWICE = "second time"


def walk(roots: Sequence[Any], most: int = 200_000) -> Iterator[Any]:
    """Every node reached from the roots, nearest first."""
    ahead = [n for n in map(start, roots) if n is not None]
    seen = set(ahead)  # holds the nodes: a node that dies would be met again as another object
    for node in ahead:
        yield node
        for after, _ in edges(node):
            if after is not None and after not in seen and len(seen) < most:
                seen.add(after)
                ahead.append(after)


def freed(node: Any) -> bool:
    """Whether a backward has already used up what this node kept."""
    for slot, attribute in slots(node):
        try:
            raw = getattr(node, attribute)
        except RuntimeError as exc:  # custom Functions refuse already here
            if _TWICE in str(exc):
                return True
            continue
        # A saved tensor without data is freed, or was never there (`x * 2` keeps no tensor for `2`).
        if not isinstance(raw, tuple) and raw.data is None and _refuses(node, slot):
            return True
        if isinstance(raw, tuple) and all(r.data is None for r in raw) and _refuses(node, slot):
            return True
    return False


def _refuses(node: Any, slot: str) -> bool:
    try:
        getattr(node, f"_saved_{slot}")
    except RuntimeError as exc:
        return _TWICE in str(exc)
    except AttributeError:
        return False
    return False


def saved(node: Any) -> Iterator[tuple[str, Any]]:
    """(slot, what was packed) for each tensor that a node kept and still has."""
    for slot, _, made in packed(node):
        if made is not None:
            yield slot, made


def sequence(node: Any) -> int:
    return int(node._sequence_nr())


def op_of(node: Any) -> str:
    """ "ExpBackward0" -> "exp", as people write it."""
    from gradmend.story.failures.versions import op_from_node

    return op_from_node(str(node.name()))
