"""Under heal(), several views of one call are made one by one.

PyTorch lets nobody write to an output of `unbind`, `split` or `chunk`, nor use it after its base was written, because one
node stands behind them all. Of single views it asks nothing of the kind, and the gradient is the same:
`s, i, r = state[t - 1]; state[t, 0] = s - i` is how people write simulators.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._C import TensorBase as Base

from gradmend.capture.ledger import scopes
from gradmend.capture.memory.layouts import PLAIN
from gradmend.capture.taps import hub, refused
from gradmend.capture.taps.stand_ins import Func, standing
from gradmend.capture.taps.wrappers import overridden

# The backward of a single view fills a whole gradient with zeros: so many bytes in all, then views stay as torch makes them.
_MOST_FILLED = 1 << 28
_NAMES = ("unbind", "split", "split_with_sizes", "chunk")


def patches() -> Iterator[tuple[Any, str, Func]]:
    for name in _NAMES:
        for owner in (torch.Tensor, torch):
            # torch.split is Python that calls Tensor.split
            if name != "split" or owner is torch.Tensor:
                original = getattr(owner, name)
                yield owner, name, standing(owner, original, _tapped(original, name))


def _tapped(original: Func, name: str) -> Func:
    make = _rows if name == "unbind" else _spans

    def tap(*args: Any, **kwargs: Any) -> Any:
        if hub.compiling() or not args or not _is_healed(args[0]):
            return original(*args, **kwargs)
        t = args[0]
        parts = original(Base.detach(t), *args[1:], **kwargs)
        if t.requires_grad and len(parts) * t.nbytes > _MOST_FILLED:
            return original(*args, **kwargs)
        views = tuple(make(t, parts, *args[1:], **kwargs))
        refused.made_single(views, name, hub.awake)
        return views

    return tap


def _is_healed(t: Any) -> bool:
    scope = scopes.current()
    if scope is None or scope.policy != "heal" or scope.refused is None or type(t) not in PLAIN:
        return False
    if overridden(t) or not torch.is_grad_enabled():  # asked first: a mode shall not see us look
        return False
    return t.layout is torch.strided and not t.is_nested


def _rows(t: torch.Tensor, parts: Any, dim: int = 0) -> list[torch.Tensor]:
    return [Base.select(t, dim, i) for i in range(len(parts))]


def _spans(t: torch.Tensor, parts: Any, sizes: Any = None, dim: int = 0, **_: Any) -> list[torch.Tensor]:
    made, start = [], 0
    for part in parts:
        made.append(Base.narrow(t, dim, start, part.size(dim)))
        start += part.size(dim)
    return made


__all__ = ["patches"]
