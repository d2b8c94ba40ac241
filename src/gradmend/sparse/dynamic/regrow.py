"""SET and RigL: a share of the weakest entries goes, and as many come elsewhere."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from gradmend.sparse.dynamic import scores
from gradmend.sparse.dynamic.base import PatternScheduler, of_keys, without_weakest
from gradmend.sparse.dynamic.carry import Optimizers
from gradmend.sparse.errors import SparseError
from gradmend.sparse.nn.weight import SparseWeight
from gradmend.sparse.pattern import Pattern


class SET(PatternScheduler):
    """Sparse evolutionary training: entries grow at random (Mocanu et al., 2018).

    `fraction` of the entries go at first, less and less until step `until` (a cosine), as many always.

    >>> from gradmend.sparse.nn import SparseLinear
    >>> layer = SparseLinear(64, 64, 0.1)
    >>> scheduler = SET(layer, torch.optim.AdamW(layer.parameters()), every=100, until=10_000)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers,
        *,
        every: int = 100,
        until: int | None = None,
        fraction: float = 0.3,
        generator: torch.Generator | None = None,
    ) -> None:
        if not 0 < fraction <= 1:
            raise SparseError(f"the fraction of entries that go is above 0 and at most 1, not {fraction}.")
        super().__init__(model, optimizer, every, until)
        self.fraction, self.generator = fraction, generator

    def _count(self, weight: SparseWeight) -> int:
        share = self.fraction
        if self.until is not None:
            share *= 0.5 * (1 + math.cos(math.pi * min(self.count / self.until, 1.0)))
        pattern = weight.pattern
        return min(int(share * pattern.nnz), pattern.numel - pattern.nnz)

    def _next(self, number: int, weight: SparseWeight) -> Pattern:
        count = self._count(weight)
        size, kept = weight.pattern.size, without_weakest(weight, count)
        new = of_keys(kept, size).missing(count, self.generator)
        return of_keys(torch.cat([kept, new.keys()]), size)

    def state_dict(self) -> dict[str, Any]:
        drawn = None if self.generator is None else self.generator.get_state()
        return {**super().state_dict(), "generator": drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.generator is not None and state.get("generator") is not None:
            self.generator.set_state(state["generator"])


class RigL(SET):
    """Entries grow where the gradient of the whole weight is largest (Evci et al., 2020).

    That gradient is made in blocks of rows, in the steps in which patterns change, and never as one matrix.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers,
        *,
        every: int = 100,
        until: int | None = None,
        fraction: float = 0.3,
    ) -> None:
        super().__init__(model, optimizer, every=every, until=until, fraction=fraction)
        homes = {id(child): layer for layer in model.modules() for child in layer.children()}
        self.watchers = [scores.Watcher(homes.get(id(weight), weight)) for weight in self.weights]
        self._arm()

    def _arm(self) -> None:
        for watcher in self.watchers:
            watcher.armed = self.due_next

    def step(self) -> bool:
        changed = super().step()
        for watcher in self.watchers:
            watcher.seen.clear()
        self._arm()
        return changed

    def _next(self, number: int, weight: SparseWeight) -> Pattern:
        count = self._count(weight)
        size, kept = weight.pattern.size, without_weakest(weight, count)
        new = scores.strongest(self.watchers[number].take(), kept, size, count, self.group)
        return of_keys(torch.cat([kept, new]), size)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._arm()

    def remove(self) -> None:
        """Takes the hooks off the layers."""
        for watcher in self.watchers:
            watcher.remove()
