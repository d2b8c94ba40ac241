"""Lines that edit a tensor of the graph where autograd does not look: `.data`, `.detach()`, `no_grad`.

To the graph such an edit is a constant; to the forward it is part of the computation. Where the two
differ only differences of the forward tell the derivative.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gradmend.fix.trials.record import Recorder

# Each access makes another method object; they compare equal.
_GET = torch.Tensor.data.__get__  # type: ignore[attr-defined]
_SET = torch.Tensor.data.__set__  # type: ignore[attr-defined]


class Live(TorchFunctionMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.doors: dict[int, Any] = {}  # storage -> a tensor of the graph that lives there
        self.by_detach = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if args and isinstance(args[0], torch.Tensor) and _writes(name, func):
            self._written(args[0], name)
        out = func(*args, **kwargs)
        door = name == "detach" or (name == "__get__" and func == _GET)
        if door and isinstance(out, torch.Tensor) and args[0].grad_fn is not None and out.numel():
            self.doors[out.untyped_storage().data_ptr()] = name
        return out

    def _written(self, target: torch.Tensor, name: str) -> None:
        if target.grad_fn is not None:
            hidden = not torch.is_grad_enabled() or name == "__set__"
        else:
            try:
                door = self.doors.get(target.untyped_storage().data_ptr()) if target.numel() else None
            except RuntimeError:
                door = None
            hidden = door is not None and not target.requires_grad
            self.by_detach = self.by_detach or (hidden and door == "detach")
        if hidden:
            place = next(self.recorder.user_frames(), None)
            if place is not None:
                self.recorder.live.add((place["file"], place["line"]))


def _writes(name: str, func: Any) -> bool:
    if name == "__set__":
        return func == _SET
    if name in ("__setitem__", "requires_grad_", "retain_grad"):
        return name == "__setitem__"
    dunder = (
        name.startswith("__i")
        and name.endswith("__")
        and name not in ("__init__", "__invert__", "__index__", "__int__")
    )
    return dunder or (name.endswith("_") and not name.endswith("__"))
