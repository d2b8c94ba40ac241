"""Where a tensor's values come from: kept as the user gave them, and read anew by each operation.

Sorting, summing of repeats and picking out of a dense tensor are then part of each operation's own graph: a tensor
that is made once, outside the training loop, follows the optimizer, and every backward has a graph of its own.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from gradmend.sparse.errors import SparseError
from gradmend.sparse.pattern import Pattern


class Source(Protocol):
    """How to read the values from what was given."""

    def read(self, given: Tensor, batch_dims: int) -> Tensor:
        """[*batch, nnz, *dense], in the pattern's order."""

    def gradient(self, grad: Tensor, batch_dims: int) -> Tensor:
        """The gradient of what was given -> that of the entries."""


class Arranged:
    """Values in the order in which places were given: sorted, repeats summed."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern

    def read(self, given: Tensor, batch_dims: int) -> Tensor:
        return self.pattern.arrange(given, batch_dims)

    def gradient(self, grad: Tensor, batch_dims: int) -> Tensor:
        """Repeats of a place all have its gradient: any one of them tells it."""
        slot = self.pattern._slot
        assert slot is not None
        one = torch.zeros(self.pattern.nnz, dtype=torch.int64, device=slot.device)
        one[slot] = torch.arange(slot.shape[0], device=slot.device)
        return grad.index_select(batch_dims, one)


class Picked:
    """A dense tensor, read at the places."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern

    def read(self, given: Tensor, batch_dims: int) -> Tensor:
        from gradmend.sparse.helpers.gather import pick

        return pick(given, self.pattern)

    gradient = read


def watchable(copy: Tensor) -> bool:
    """Whether writes to this copy can be found later: not inside torch.compile or a transform."""
    return not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()


class Copies:
    """Copies that `values()` returned: a write to one would be lost, so it is an error at the next use of S."""

    def __init__(self) -> None:
        self._kept: list[tuple[Tensor, Tensor | int]] = []

    def add(self, copy: Tensor) -> None:
        self.check()
        self._kept.append(_as_it_is(copy.detach()))

    def check(self) -> None:
        """Raises for a copy that was written to, and forgets those that nobody else holds."""
        for i, (seen, was) in enumerate(self._kept):
            if seen._version != was if isinstance(was, int) else not _same(seen, was):
                self._kept[i] = _as_it_is(seen)
                raise SparseError(
                    "a copy of the values was written to, which doesn't change the sparse tensor: values() returns a copy "
                    "if places are repeated, if the values are read from a dense tensor, or after an operation on places "
                    "in another order. Write to the tensor that S was made from, or to S.values().clone()."
                )
        self._kept = [one for one in self._kept if not _alone(one[0])]


def _as_it_is(seen: Tensor) -> tuple[Tensor, Tensor | int]:
    """Numbers can be written where no version counts it (numpy), but only on the CPU."""
    return seen, seen.clone() if seen.is_cpu else seen._version


def _same(a: Tensor, b: Tensor) -> bool:
    """Bit by bit: NaN equals itself."""
    first, second = (x.resolve_conj().resolve_neg().contiguous().view(torch.uint8) for x in (a, b))
    return torch.equal(first, second)


def _alone(x: Tensor) -> bool:
    """Whether x is the only tensor on its memory (unknown: False). The storage object made here counts too."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    return count is not None and count(x.untyped_storage()._cdata) <= 2
