"""The flight recorder: the last Writes of the program in a bounded ring, for an error that comes later.

A record holds addresses and raw sites, never a tensor: recording must keep nothing alive. An optimizer's step
is recorded once, with the parameters it stepped, and not by the dozens of writes it is made of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple

import torch

from gradmend.capture.hooks import optimizer_steps
from gradmend.capture.memory.layouts import Layout, layout_of
from gradmend.capture.native.loading import compiled
from gradmend.capture.sites import Raw, raw_here
from gradmend.capture.taps import hub

_CALLS_KEPT = 8192

_address = torch._C.TensorBase.data_ptr
_nbytes: Any = torch._C.TensorBase.__dict__["nbytes"].__get__


# A written tensor: its address, its bytes from first to last, its grid in them if it has gaps, and its version.
Place = tuple[int, int, Layout | None, int]


class Recorded(NamedTuple):
    """One call that wrote."""

    tick: int
    op: str
    how: str
    raw: Raw
    tensors: list[Place]  # in the order of the call


class WriteRecord:
    """One tensor of a recorded call, as the postmortem reads it."""

    __slots__ = ("grid", "hi", "how", "lo", "op", "raw", "tick", "version")

    def __init__(self, call: Recorded, place: Place) -> None:
        self.lo, size, self.grid, self.version = place
        self.hi = self.lo + size
        self.op = call.op
        self.how = call.how
        self.raw = call.raw
        self.tick = call.tick


def _place(t: torch.Tensor) -> Place:
    if compiled is not None and (place := compiled.place(t)) is not None:
        return place
    if t.is_contiguous():
        return _address(t), _nbytes(t), None, t._version
    layout = layout_of(t)
    return _address(t), layout.hi - layout.lo, None if layout.dense else layout, t._version


def _places(params: Sequence[torch.Tensor]) -> list[Place]:
    """Of those that have a gradient, and so are stepped."""
    if compiled is not None and (places := compiled.places(params)) is not None:
        return places
    return [_place(p) for p in params if p.grad is not None]


class Recorder:
    def __init__(self, most: int = _CALLS_KEPT) -> None:
        self.ring: deque[Iterable[Any]] = deque(maxlen=most)  # see writes()
        self.ticks = count(1)
        # Called after each step of an optimizer.
        self.ear = (
            self.stepped
            if compiled is None
            else compiled.steps_to(self.ring.append, self.ticks, self.stepped)
        )

    def __call__(self, op: str, targets: Sequence[torch.Tensor], how: str) -> None:
        try:
            tensors = [_place(t) for t in targets]
        except RuntimeError:
            return  # no memory of its own, or an inference tensor
        self.ring.append(Recorded(next(self.ticks), op, how, raw_here(3), tensors))

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped: its parameters were written, from the line that called step()."""
        tensors: list[Place] = []
        try:
            with hub.unheard():
                for group in optimizer.param_groups:
                    tensors += _places(group["params"])
        except RuntimeError:
            return
        op = f"{type(optimizer).__name__}.step"
        self.ring.append(Recorded(next(self.ticks), op, "data", raw_here(2), tensors))

    def writes(self) -> list[WriteRecord]:
        # Compiled code leaves structs, which iterate as a Recorded.
        calls = [Recorded._make(call) for call in self.ring]
        return [WriteRecord(call, place) for call in calls for place in call.tensors]


_running: Recorder | None = None


def start() -> Recorder:
    global _running
    if _running is None:
        _running = Recorder()
        optimizer_steps.arm()
        optimizer_steps.stepped.append(_running.ear)
        hub.listen(_running)
    return _running


def stop() -> None:
    global _running
    if _running is not None:
        optimizer_steps.stepped.remove(_running.ear)
        optimizer_steps.disarm()
        hub.unlisten(_running)
        _running = None


def current() -> Recorder | None:
    return _running


__all__ = ["Recorder", "WriteRecord", "current", "start", "stop"]
