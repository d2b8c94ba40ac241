"""Walking a graph from its roots, and asking a node what it kept, without unpacking anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from gradmend.capture.graph.nodes import edges

_TWICE = "second time"


def starts(roots: Sequence[Any]) -> list[Any]:
    """The nodes of tensors or GradientEdges; of a leaf there is none."""
    nodes = (r.grad_fn if isinstance(r, torch.Tensor) else getattr(r, "node", None) for r in roots)
    return [n for n in nodes if n is not None]


def walk(roots: Sequence[Any], most: int = 200_000) -> Iterator[Any]:
    """Every node reached from the roots, nearest first."""
    ahead, seen = starts(roots), set()
    seen.update(ahead)  # holds the nodes: a node that dies would be met again as another object
    for node in ahead:
        yield node
        for after, _ in edges(node):
            if after is not None and after not in seen and len(seen) < most:
                seen.add(after)
                ahead.append(after)


def freed(node: Any) -> bool:
    """Whether a backward has already used up what this node kept."""
    for slot in slots(node):
        try:
            raw = getattr(node, f"_raw_saved_{slot}")
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
    for slot in slots(node):
        try:
            raw = getattr(node, f"_raw_saved_{slot}")
        except RuntimeError:
            continue
        for one in raw if isinstance(raw, tuple) else (raw,):
            if one.data is not None:
                yield slot, one.data


def slots(node: Any) -> tuple[str, ...]:
    """The names of the tensors that this kind of node keeps."""
    kind: Any = type(node)
    found = _slots.get(kind)
    if found is None:
        prefix = "_raw_saved_"
        found = _slots[kind] = tuple(a.removeprefix(prefix) for a in dir(kind) if a.startswith(prefix))
    return found


_slots: WeakKeyDictionary[Any, tuple[str, ...]] = WeakKeyDictionary()  # a custom Function's class may go away


def sequence(node: Any) -> int:
    return int(node._sequence_nr())


def op_of(node: Any) -> str:
    """ "ExpBackward0" -> "exp", as people write it."""
    from gradmend.story.failures.versions import op_from_node

    return op_from_node(str(node.name()))
