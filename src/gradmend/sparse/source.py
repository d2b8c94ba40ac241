"""Where a tensor's values come from: kept as the user gave them, and read anew by each operation.

Sorting, summing of repeats and picking out of a dense tensor are then part of each operation's own graph: a tensor
that is made once, outside the training loop, follows the optimizer, and every backward has a graph of its own.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

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
