"""Let a forward run that PyTorch refuses: the refused write is done without autograd.

The values are then those the program means; gradients are not, so only losses of such a run count,
except for updates of parameters, which are no part of the graph anyway.
"""

from __future__ import annotations

import linecache
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gradmend.capture.taps.leaf_writes import returned
from gradmend.fix.trials.forgive_words import SHARED, refused
from gradmend.fix.trials.record import Recorder, youngest

# `w[0] = v`, `w[0] += v`, `self.w[i].mul_(v)`: the place in the tensor is named where it is written.
_PLACE = re.compile(r"\s*[\w.]+\[[^=]*\](\.\w+_\(|\s*[-+*/%&|^@<>]{0,2}=)")


def _is_place(frame: dict[str, Any]) -> bool:
    return _PLACE.match(linecache.getline(frame["file"], frame["line"])) is not None


def _is_part(a: torch.Tensor, home: torch.Tensor | None) -> bool:
    """`w[0] *= 2` ends in an assignment of the part to itself."""
    return home is not None and a.untyped_storage().data_ptr() == home.untyped_storage().data_ptr()


@dataclass(slots=True)
class LeafWrite:
    """A refused write to a leaf, and how the program uses the leaf around it."""

    leaf: int
    number: int  # of the newest node when it was made
    calls: int  # backward calls before it
    forward: bool  # inside a module's forward
    returned: bool  # inside a function that returns what it writes
    parameter: bool
    named: bool  # through a view that has a name
    flows: bool  # what it writes depends on other tensors that require grad
    before: bool = False  # the graph of the next backward was begun before it
    after: bool = False  # and reads the leaf after it

    def met(self, oldest: float, latest: float, last: float) -> None:
        """A backward goes through a graph: its oldest node, the leaf's last use in it, the youngest node of the call before."""
        self.before = last < oldest <= self.number
        self.after = latest > self.number

    @property
    def meaning(self) -> str:
        """ "computation" where the written value goes on into the loss, "update" where nothing in the graph reads it or
        the graph begins with it; empty where both fit."""
        if not self.after:
            return "update"
        if self.before or self.forward:
            return "computation"
        if self.calls:
            return "update"
        if self.returned:
            return "computation"
        return "update" if self.parameter and not (self.named and self.flows) else ""


class Forgive(TorchFunctionMode):
    def __init__(self, recorder: Recorder | None = None) -> None:
        super().__init__()
        self.quiet = False  # inside a forgiven write
        self.nudge: Any = None
        self.recorder = recorder
        self.writes: list[LeafWrite] = []
        if recorder is not None:
            recorder.leaf_writes = self.writes

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
        if self.recorder is None or not args or not isinstance(args[0], torch.Tensor):
            return
        home = args[0]._base if args[0]._base is not None else args[0]
        frames = list(self.recorder.user_frames())
        # What is computed from other tensors may be meant as forward.
        flows = any(
            isinstance(a, torch.Tensor) and a.requires_grad and not _is_part(a, home) for a in args[1:]
        )
        self.writes.append(
            LeafWrite(
                leaf=id(home),
                number=youngest(),
                calls=sum(not c.get("failed") for c in self.recorder.calls),
                forward=any(f["function"] in ("forward", "__call__") for f in frames),
                returned=any(returned(f["file"], f["line"]) for f in frames[:1]),
                parameter=isinstance(home, torch.nn.Parameter),
                named=args[0]._base is not None and not (frames and _is_place(frames[0])),
                flows=flows,
            )
        )

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
