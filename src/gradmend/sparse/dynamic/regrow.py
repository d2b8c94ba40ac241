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

    def _count(self, weight: SparseWeight, step: int) -> int:
        share = self.fraction
        if self.until is not None:
            share *= 0.5 * (1 + math.cos(math.pi * min(step / self.until, 1.0)))
        pattern = weight.pattern
        return min(int(share * pattern.nnz), pattern.numel - pattern.nnz)

    def _next(self, number: int, weight: SparseWeight, step: int) -> Pattern:
        count = self._count(weight, step)
        size, kept = weight.pattern.size, without_weakest(weight, count)
        new = of_keys(kept, size).missing(count, self.generator)
        return of_keys(torch.cat([kept, new.keys()]), size)

    def state_dict(self) -> dict[str, Any]:
        drawn = None if self.generator is None else self.generator.get_state()
        return {**super().state_dict(), "generator": drawn}

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        if self.generator is None and state.get("generator") is not None:
            raise SparseError(
                "the saved scheduler drew from a generator, and this one has none: pass generator=."
            )

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
        homes: dict[int, list[nn.Module]] = {}
        for layer in model.modules():
            for child in layer.children():
                homes.setdefault(id(child), []).append(layer)
        of_each = [homes.get(id(weight), [weight]) for weight in self.weights]
        for layers, weight in zip(of_each, self.weights, strict=True):
            if weight.values.requires_grad:
                scores.check_layers(layers)
        self.watchers = [scores.Watcher(layers) for layers in of_each]
        self._arm()

    def _arm(self) -> None:
        for watcher in self.watchers:
            watcher.armed = self.due_next

    def step(self) -> bool:
        changed = super().step()  # keeps what was seen if it raises
        for watcher in self.watchers:
            watcher.seen.clear()
        self._arm()
        return changed

    def _next(self, number: int, weight: SparseWeight, step: int) -> Pattern:
        count = self._count(weight, step)
        size, kept = weight.pattern.size, without_weakest(weight, count)
        pairs = scores.seen_by_all(self.watchers[number].pairs(), weight.values, size, self.group)
        new = scores.strongest(pairs, kept, size, count, self.group)
        return of_keys(torch.cat([kept, new]), size)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._arm()

    def remove(self) -> None:
        """Takes the hooks off the layers."""
        for watcher in self.watchers:
            watcher.remove()
