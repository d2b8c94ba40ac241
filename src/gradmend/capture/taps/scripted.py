"""Scripted, traced and loaded functions: whether they write in place is read from their graph, what they write is not seen.

So each tensor that is handed to one that writes counts as written, as a whole: what live Saves need of it is kept before the
call, and the steps of its counter are the call's own. The function itself runs as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from gradmend.capture.taps import hub
from gradmend.capture.taps.schemas import gather
from gradmend.capture.taps.stand_ins import Func, standing

_KINDS: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)
_known: dict[int, tuple[Any, bool]] = {}  # by the function, which is held: whether it writes in place
_MOST_KNOWN = 4096


def patches() -> Iterator[tuple[Any, str, Func]]:
    for kind in _KINDS:
        yield kind, "__call__", _tapped(kind)


def _tapped(kind: Any) -> Func:
    original = kind.__dict__["__call__"]

    def tap(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not hub.awake or hub.compiling() or not _writes(self):
            return original(self, *args, **kwargs)
        targets: list[torch.Tensor] = []
        for one in (*args, *kwargs.values()):
            gather(list(one.values()) if isinstance(one, dict) else one, targets)
        pending = hub.before(f"{self.name} (scripted)", targets) if targets else None
        return hub.carry(pending, original, (self, *args), kwargs)

    return standing(kind, original, tap)


def _writes(function: Any) -> bool:
    known = _known.get(id(function))
    if known is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        graph = getattr(function, "inlined_graph", None) or function.graph
        known = _known[id(function)] = function, any(map(_is_write, _ops(graph)))
    return known[1]


def _is_write(op: str) -> bool:
    return op.startswith("aten::") and op.endswith("_") and not op.endswith("__")


def _ops(block: Any) -> Iterator[str]:
    for node in block.nodes():
        yield node.kind()
        for inner in node.blocks():
            yield from _ops(inner)


__all__ = ["patches"]
