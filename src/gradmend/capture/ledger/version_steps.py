"""Steps of version counters that tapped writes account for: whatever remains was a write that nobody saw.

The counter steps for `view.unsqueeze_(0)` and for `add_(0)` too, which change no value.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_storage_of = torch._C.TensorBase.untyped_storage
_STILL = frozenset({"detach_", "requires_grad_"})  # told to the taps, but they step no counter


def key_of(t: torch.Tensor) -> int:
    try:
        return int(_storage_of(t)._cdata)
    except RuntimeError:
        return 0


def identity(t: torch.Tensor) -> int:
    """By its memory, or, where it shows none (sparse, batched), as the object that it is while somebody holds it."""
    return key_of(t) or -id(t)


class Steps:
    """Some tensors' counters, while somebody else's code runs."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tensors
        self.keys = [key_of(t) for t in tensors]
        self._known = [t._version for t in tensors]

    def hear(self, op: str, targets: Sequence[torch.Tensor]) -> None:
        """A tapped write has happened: one step of each counter that it moved is its own."""
        if op in _STILL:
            return
        for target in targets:
            key = key_of(target)
            for i, t in enumerate(self.tensors):
                same = self.keys[i] == key if key else target is t  # a batched tensor shows no memory
                if same and t._version > self._known[i]:
                    self._known[i] += 1

    def unseen(self, i: int) -> bool:
        """Whether the counter of the i-th tensor stepped by more than the writes that were heard."""
        return self.tensors[i]._version > self._known[i]
