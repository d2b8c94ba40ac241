"""The flight recorder: the last Writes of the program in a bounded ring, for an error that comes later.

A record holds addresses and raw sites, never a tensor: recording must keep nothing alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Any

import torch

from gradmend.capture.sites import Raw, raw_here
from gradmend.capture.taps import hub

_CALLS_KEPT = 8192

_address = torch._C.TensorBase.data_ptr
_nbytes: Any = torch._C.TensorBase.__dict__["nbytes"].__get__


class Recorded:
    """One call that wrote: the addresses of all it wrote, in order."""

    __slots__ = ("addresses", "how", "op", "raw", "sizes", "tick", "versions")

    def __init__(
        self,
        tick: int,
        op: str,
        how: str,
        raw: Raw,
        addresses: list[int],
        sizes: list[int],
        versions: list[int],
    ) -> None:
        self.tick = tick
        self.op = op
        self.how = how
        self.raw = raw
        self.addresses = addresses
        self.sizes = sizes
        self.versions = versions


class WriteRecord:
    """One tensor of a recorded call, as the postmortem reads it."""

    __slots__ = ("hi", "how", "lo", "op", "raw", "tick", "version")

    def __init__(self, call: Recorded, at: int) -> None:
        self.lo = call.addresses[at]
        self.hi = self.lo + call.sizes[at]
        self.version = call.versions[at]
        self.op = call.op
        self.how = call.how
        self.raw = call.raw
        self.tick = call.tick


class Recorder:
    def __init__(self, most: int = _CALLS_KEPT) -> None:
        self.ring: deque[Recorded] = deque(maxlen=most)
        self._ticks = count(1)

    def __call__(self, op: str, targets: Sequence[torch.Tensor], how: str) -> None:
        try:
            addresses = [_address(t) for t in targets]
            sizes = [_nbytes(t) for t in targets]
            versions = [t._version for t in targets]
        except (RuntimeError, NotImplementedError):
            return  # no memory of its own, or an inference tensor
        self.ring.append(Recorded(next(self._ticks), op, how, raw_here(3), addresses, sizes, versions))

    def writes(self) -> list[WriteRecord]:
        return [WriteRecord(call, at) for call in self.ring for at in range(len(call.addresses))]


_recorder: Recorder | None = None


def start() -> Recorder:
    global _recorder
    if _recorder is None:
        _recorder = Recorder()
        hub.listen(_recorder)
    return _recorder


def stop() -> None:
    global _recorder
    if _recorder is not None:
        hub.unlisten(_recorder)
        _recorder = None


def current() -> Recorder | None:
    return _recorder


__all__ = ["Any", "Recorder", "WriteRecord", "current", "start", "stop"]
