"""The flight recorder: the last Writes of the program in a bounded ring, for an error that comes later.

A record holds addresses and raw sites, never a tensor: recording must keep nothing alive. An optimizer's step
is recorded once, with the parameters it stepped, and not by the dozens of writes it is made of.
"""

from __future__ import annotations

import array
from collections import deque
from collections.abc import Sequence
from struct import iter_unpack
from typing import Any, NamedTuple

import torch

from gradmend.capture import edge
from gradmend.capture.hooks import optimizer_steps
from gradmend.capture.memory.layouts import Layout, layout_of
from gradmend.capture.sites import Raw, raw_here
from gradmend.capture.taps import hub

_CALLS_KEPT = 8192

_address, _version = torch._C.TensorBase.data_ptr, edge.version
_packed = edge.chosen("places", lambda tensors: None)

# A written tensor: its address, its bytes from first to last, its version, and its layout in them if it has gaps.
Place = tuple[int, int, int, Layout | None]
# One call that wrote: the op, its line, its tensors in the order of the call. Where none has gaps, three numbers of each in
# one object: 8,192 steps over 200 parameters take 37 MB so, and 245 MB as tuples.
Recorded = tuple[str, Raw, bytes | list[Place]]


class WriteRecord(NamedTuple):
    """One tensor of a recorded call, as the postmortem reads it."""

    tick: int  # counts calls, from the oldest that is kept
    op: str
    raw: Raw
    lo: int
    hi: int
    grid: Layout | None
    version: int


def _places(tensors: Sequence[torch.Tensor]) -> bytes | list[Place]:
    packed: bytes | None = _packed(tensors)
    if packed is not None:
        return packed
    numbers = array.array("q")
    for t in tensors:
        place = _place(t)
        if place[3] is not None:
            return [_place(t) for t in tensors]
        numbers.extend(place[:3])
    return numbers.tobytes()


def _place(t: torch.Tensor) -> Place:
    layout = layout_of(t)
    return _address(t), layout.hi - layout.lo, _version(t), None if layout.dense else layout


def unpacked(places: bytes | list[Place]) -> list[Place]:
    """Of one call."""
    if isinstance(places, list):
        return places
    return [(*three, None) for three in iter_unpack("qqq", places)]


class Recorder:
    def __init__(self) -> None:
        self.ring: deque[Recorded] = deque(maxlen=_CALLS_KEPT)

    def __call__(self, op: str, targets: Sequence[torch.Tensor], how: str) -> None:
        try:
            places = _places(targets)
        except RuntimeError:
            return  # no memory of its own, or an inference tensor
        self.ring.append((op, raw_here(), places))

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped: its parameters were written, from the line that called step()."""
        params = [p for group in optimizer.param_groups for p in group["params"]]
        if hub.overridden(params):
            with hub.unheard():
                self._stepped(optimizer, params)
        else:
            self._stepped(optimizer, params)

    def _stepped(self, optimizer: Any, params: list[torch.Tensor]) -> None:
        self(f"{type(optimizer).__name__}.step", [p for p in params if p.grad is not None], "data")

    def writes(self) -> list[WriteRecord]:
        return [
            WriteRecord(tick, op, raw, lo, lo + size, grid, version)
            for tick, (op, raw, places) in enumerate(self.ring)
            for lo, size, version, grid in unpacked(places)
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
