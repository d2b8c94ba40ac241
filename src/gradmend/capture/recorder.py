"""The flight recorder: the last Writes of the program in a bounded ring, for an error that comes later.

A record holds addresses and raw sites, never a tensor: recording must keep nothing alive. An optimizer's step
is recorded once, with the parameters it stepped, and not by the dozens of writes it is made of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from gradmend.capture import edge
from gradmend.capture.hooks import optimizer_steps
from gradmend.capture.memory.layouts import layout_of
from gradmend.capture.sites import Raw, raw_here
from gradmend.capture.taps import hub

_CALLS_KEPT = 8192

_address, _version = torch._C.TensorBase.data_ptr, edge.version

# A written tensor: its address, its bytes from first to last, its layout in them if it has gaps, and its version.
Place = tuple[int, int, Any, int]


# One call that wrote: the op, its line, its tensors in the order of the call.
Recorded = tuple[str, Raw, list[Place]]


class WriteRecord(NamedTuple):
    """One tensor of a recorded call, as the postmortem reads it."""

    tick: int  # counts calls, from the oldest that is kept
    op: str
    raw: Raw
    lo: int
    hi: int
    grid: Any
    version: int


def _place(t: torch.Tensor) -> Place:
    layout = layout_of(t)
    return _address(t), layout.hi - layout.lo, None if layout.dense else layout, _version(t)


def _stepped(params: Sequence[torch.Tensor]) -> list[Place]:
    """Those that have a gradient."""
    if hub.overridden(params):
        with hub.unheard():
            return [_place(p) for p in params if p.grad is not None]
    return [_place(p) for p in params if p.grad is not None]


class Recorder:
    def __init__(self) -> None:
        self.ring: deque[Recorded] = deque(maxlen=_CALLS_KEPT)

    def __call__(self, op: str, targets: Sequence[torch.Tensor], how: str) -> None:
        try:
            tensors = [_place(t) for t in targets]
        except RuntimeError:
            return  # no memory of its own, or an inference tensor
        self.ring.append((op, raw_here(), tensors))

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped: its parameters were written, from the line that called step()."""
        tensors: list[Place] = []
        try:
            for group in optimizer.param_groups:
                tensors += _stepped(group["params"])
        except RuntimeError:
            return
        self.ring.append((f"{type(optimizer).__name__}.step", raw_here(), tensors))

    def writes(self) -> list[WriteRecord]:
        return [
            WriteRecord(tick, op, raw, lo, lo + size, grid, version)
            for tick, (op, raw, places) in enumerate(self.ring)
            for lo, size, grid, version in places
        ]


_running: Recorder | None = None


def start() -> Recorder:
    global _running
    if _running is None:
        _running = Recorder()
        optimizer_steps.arm()
        optimizer_steps.stepped.append(_running.stepped)
        hub.listen(_running)
    return _running


def stop() -> None:
    global _running
    if _running is not None:
        optimizer_steps.stepped.remove(_running.stepped)
        optimizer_steps.disarm()
        hub.unlisten(_running)
        _running = None


def current() -> Recorder | None:
    return _running


__all__ = ["Recorder", "WriteRecord", "current", "start", "stop"]
