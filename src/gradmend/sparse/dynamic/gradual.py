"""Gradual magnitude pruning: fewer and fewer entries, the weakest first."""

from __future__ import annotations

from typing import Any

from torch import nn

from gradmend.sparse.dynamic.base import PatternScheduler, of_keys, without_weakest
from gradmend.sparse.dynamic.carry import Optimizers
from gradmend.sparse.errors import SparseError
from gradmend.sparse.nn.weight import SparseWeight
from gradmend.sparse.pattern import Pattern


class GradualMagnitude(PatternScheduler):
    """From the density that each weight has to `density`, along a cubic from step `begin` to step `end`
    (Zhu and Gupta, 2017): d(t) = d_end + (d_begin - d_end) * (1 - (t - begin) / (end - begin))^3."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers,
        density: float,
        *,
        end: int,
        begin: int = 0,
        every: int = 100,
    ) -> None:
        if not 0 <= density <= 1:
            raise SparseError(f"a density is from 0 to 1, not {density}.")
        if not 0 <= begin < end:
            raise SparseError(f"pruning begins before it ends, not at {begin} and {end}.")
        super().__init__(model, optimizer, every, end)
        self.density, self.begin, self.end = density, begin, end
        self.first = [w.pattern.density for w in self.weights]

    def density_at(self, step: int, first: float) -> float:
        left = 1 - min(max((step - self.begin) / (self.end - self.begin), 0.0), 1.0)
        return self.density + (first - self.density) * left**3

    def _next(self, number: int, weight: SparseWeight, step: int) -> Pattern:
        wanted = round(self.density_at(step, self.first[number]) * weight.pattern.numel)
        kept = without_weakest(weight, max(weight.pattern.nnz - wanted, 0))
        return of_keys(kept, weight.pattern.size)

    def state_dict(self) -> dict[str, Any]:
        """With the densities that pruning began from: a model that is loaded first has fewer entries by then."""
        return {**super().state_dict(), "first": list(self.first)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.first = list(state.get("first", self.first))

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        if len(first := state.get("first", self.first)) != len(self.first):
            raise SparseError(
                f"the saved state is of {len(first)} sparse weights, and there are {len(self.first)}."
            )
