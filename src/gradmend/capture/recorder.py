"""The flight recorder: the last Writes of the program in a bounded ring, for an error that comes later.

A record holds addresses and raw sites, never a tensor: recording must keep nothing alive. An optimizer's step
is recorded once, with the parameters it stepped, and not by the dozens of writes it is made of.
"""

from __future__ import annotations

import array
from collections import deque
from collections.abc import Callable, Sequence
from struct import iter_unpack
from threading import get_ident
from typing import Any, NamedTuple

import torch

from gradmend.capture import edge
from gradmend.capture.hooks import optimizer_steps
from gradmend.capture.memory.layouts import Layout, has_values, layout_of
from gradmend.capture.sites import Raw, raw_here
from gradmend.capture.taps import hub

_CALLS_KEPT = 8192

_address, _version = torch._C.TensorBase.data_ptr, edge.version
_is_meta = torch._C.TensorBase.__dict__["is_meta"].__get__
_number: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
_transforming = torch._C._are_functorch_transforms_active
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_packed = edge.chosen("places", lambda tensors: None)

# A written tensor: its address, its bytes from first to last, its version, and its layout in them if it has gaps.
Place = tuple[int, int, int, Layout | None]

# One call that wrote: the op, its line, its tensors in the order of the call, the thread, and the number of the next node
# that it makes. Where no tensor has gaps, three numbers of each in one object: 8,192 steps over 200 parameters take 37 MB
# so, and 245 MB as tuples.
Recorded = tuple[str, Raw, bytes | list[Place], int, int]


class WriteRecord(NamedTuple):
    """Of a call that wrote, one tensor; `tick` is the place of the call in the ring."""

    tick: int
    op: str
    raw: Raw
    thread: int
    number: int
    lo: int
    hi: int
    version: int
    grid: Layout | None


def _places(tensors: Sequence[torch.Tensor]) -> bytes | list[Place]:
    if tensors and _is_meta(tensors[0]):
        return b""  # the inside of a FakeTensor, which warns whoever asks where it lies
    if _transforming() and any(map(_is_wrapped, tensors)):
        return b""  # torch.func's wrappers have no address, and PyTorch's error costs a C++ backtrace
    try:
        packed: bytes | None = _packed(tensors)
    except RuntimeError:
        packed = None  # an inference tensor
    if packed is not None:
        return packed
    places: list[Place] = []
    numbers, gaps = array.array("q"), False
    for t in tensors:
        try:
            place = _place(t)
        except RuntimeError:
            continue  # no memory of its own, or an inference tensor
        if place is not None:
            gaps = gaps or place[3] is not None
            places.append(place)
            numbers.extend(place[:3])
    return places if gaps else numbers.tobytes()


def _place(t: torch.Tensor) -> Place | None:
    if not has_values(t):
        return None
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
        places = _places(targets)
        if places:
            self.ring.append((op, raw_here(), places, get_ident(), _number()))

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped: its parameters were written, from the line that called step()."""
        try:
            params = optimizer_steps.parameters(optimizer)
            if hub.overridden(params):
                with hub.unheard():
                    self._stepped(optimizer, params)
            else:
                self._stepped(optimizer, params)
        except (AttributeError, KeyError, TypeError):
            pass  # an optimizer that keeps them in a way of its own: its writes were heard one by one

    def _stepped(self, optimizer: Any, params: list[torch.Tensor]) -> None:
        self(f"{type(optimizer).__name__}.step", [p for p in params if p.grad is not None], "data")

    def writes(self, wanted: Callable[[int, int, int], bool] | None = None) -> list[WriteRecord]:
        """The oldest first: all, or those whose address, size and version are wanted. There may be a million."""
        return [
            WriteRecord(tick, op, raw, thread, number, lo, lo + size, version, grid)
            for tick, (op, raw, places, thread, number) in enumerate(self.ring)
            for lo, size, version, grid in unpacked(places)
            if wanted is None or wanted(lo, size, version)
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
