"""What schedulers of patterns share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradmend.sparse.dynamic.carry import Optimizers, check_free, each, repattern
from gradmend.sparse.errors import SparseError
from gradmend.sparse.kernels.grouping import grouped
from gradmend.sparse.nn.weight import SparseWeight
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.places import unlinear


class PatternScheduler:
    """Call `step()` once for each training step, after `backward()`; every `every` steps patterns change.

    Under DistributedDataParallel all ranks change alike: rank 0 says how. Weights that are frozen in that step
    (`requires_grad_(False)`) are left alone. All new patterns are found before the first weight takes its own: a step
    that raises has changed nothing.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizers, every: int, until: int | None) -> None:
        if every < 1:
            raise SparseError(f"patterns change every 1 step or more, not every {every}.")
        self.weights = [m for m in model.modules() if isinstance(m, SparseWeight)]
        if not self.weights:
            raise SparseError(
                "the model has no sparse weights: use SparseLinear, SparseConv2d or SparseWeight."
            )
        if isinstance(optimizer, torch.optim.Optimizer):
            each(optimizer)  # one that can't follow is refused now, not at the first change
        self.optimizer, self.every, self.until = optimizer, every, until
        self.count = 0
        self.group: Any = model.process_group if isinstance(model, DistributedDataParallel) else None

    def step(self) -> bool:
        """True if patterns have changed."""
        after = self.count + 1
        if not self._due(after):
            self.count = after
            return False
        moving = [(n, w) for n, w in enumerate(self.weights) if w.values.requires_grad]
        for _, weight in moving:
            check_free(weight)
        found = [self._agreed(self._next(n, w, after), w) for n, w in moving]
        for (_, weight), pattern in zip(moving, found, strict=True):
            repattern(weight, pattern, self.optimizer)
        self.count = after
        return bool(moving)

    def _due(self, step: int) -> bool:
        return step % self.every == 0 and (self.until is None or step <= self.until)

    @property
    def due_next(self) -> bool:
        return self._due(self.count + 1)

    def _next(self, number: int, weight: SparseWeight, step: int) -> Pattern:
        raise NotImplementedError

    def _agreed(self, pattern: Pattern, weight: SparseWeight) -> Pattern:
        if self.group is None or torch.distributed.get_world_size(self.group) == 1:
            return pattern
        if pattern.nnz != weight.pattern.nnz:
            raise SparseError(
                "DistributedDataParallel keeps room for a fixed number of entries: change their number before the model "
                "is wrapped."
            )
        keys: Tensor = pattern.keys()
        torch.distributed.broadcast(keys, torch.distributed.get_global_rank(self.group, 0), group=self.group)
        return of_keys(keys, pattern.size)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What `state_dict` gave; other state is an error, and nothing is loaded."""
        self._check_state(state)
        self.count = state["count"]

    def _check_state(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or not isinstance(state.get("count"), int) or state["count"] < 0:
            raise SparseError("the saved state of a scheduler holds no count of its steps.")
        if strange := sorted(str(key) for key in state.keys() - self.state_dict().keys()):
            raise SparseError(
                f"the saved state holds {', '.join(strange)}, which {type(self).__name__} does not have: it is of another "
                f"scheduler."
            )


def without_weakest(weight: SparseWeight, count: int) -> Tensor:
    """The row-major numbers of the entries that stay when the `count` of least magnitude go, ascending."""
    size = weight.values.detach().abs()
    size = size.flatten(1).square().sum(1) if size.dim() > 1 else size
    stays = torch.ones(size.shape[0], dtype=torch.bool, device=size.device)
    stays[size.topk(count, largest=False, sorted=False).indices] = False
    return weight.pattern.keys()[stays]


def of_keys(keys: Tensor, size: Sequence[int]) -> Pattern:
    """Numbers in any order, none twice -> a pattern; a radix sort is most of what that costs."""
    return Pattern.sorted(unlinear(grouped(keys, math.prod(size), known=True).rows, tuple(size)), size)
