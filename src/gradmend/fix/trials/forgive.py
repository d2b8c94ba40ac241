"""Let a forward run that PyTorch refuses: the refused write is done without autograd.

The values are then those the program means; gradients are not, so only losses of such a run count,
except for updates of parameters, which are no part of the graph anyway.
"""

from __future__ import annotations

import linecache
import re
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gradmend.fix.trials.forgive_words import SHARED, refused
from gradmend.fix.trials.record import Recorder

# `w[0] = v`, `w[0] += v`, `self.w[i].mul_(v)`: the place in the tensor is named where it is written.
_PLACE = re.compile(r"\s*[\w.]+\[[^=]*\](\.\w+_\(|\s*[-+*/%&|^@<>]{0,2}=)")


def _is_place(frame: dict[str, Any]) -> bool:
    return _PLACE.match(linecache.getline(frame["file"], frame["line"])) is not None


def _is_part(a: torch.Tensor, home: torch.Tensor | None) -> bool:
    """`w[0] *= 2` ends in an assignment of the part to itself."""
    return home is not None and a.untyped_storage().data_ptr() == home.untyped_storage().data_ptr()


class Forgive(TorchFunctionMode):
    def __init__(self, recorder: Recorder | None = None) -> None:
        super().__init__()
        self.quiet = False  # inside a forgiven write
        self.nudge: Any = None
        self.recorder = recorder
        self.edits = 0  # writes to Parameters outside of any forward: first values, surgery, updates
        self.others = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except RuntimeError as why:
            if not refused(str(why)):
                raise
        self._note(args)
        if getattr(func, "__name__", "") == "detach_":
            return self.detached(args[0])
        self.quiet = True
        try:
            with torch.no_grad():
                return self._written(func, args, kwargs)
        finally:
            self.quiet = False

    def _note(self, args: Any) -> None:
        home = args[0] if args and isinstance(args[0], torch.Tensor) else None
        frames = list(self.recorder.user_frames()) if self.recorder is not None else []
        if home is not None and home._base is not None and frames and _is_place(frames[0]):
            home = home._base
        inside = any(f["function"] in ("forward", "__call__") for f in frames)
        # What is computed from parameters, or put into a view that has a name of its own, may be meant as forward.
        flows = any(
            isinstance(a, torch.Tensor) and a.requires_grad and not _is_part(a, home) for a in args[1:]
        )
        if isinstance(home, torch.nn.Parameter) and not inside and not flows:
            self.edits += 1
        else:
            self.others += 1

    def _written(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except RuntimeError as why:
            if SHARED not in str(why):
                raise
        # An expanded tensor: write to memory of its own, as a new tensor would have.
        args[0].data = args[0].data.clone(memory_format=torch.contiguous_format)
        return func(*args, **kwargs)

    def detached(self, tensor: torch.Tensor) -> torch.Tensor:
        """`detach_()` of a view: from here on the object is a constant with the same values."""
        if self.nudge is not None:
            self.nudge.stop_in_place(tensor)
        return tensor
