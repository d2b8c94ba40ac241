"""A weight takes another pattern: entries that stay keep their numbers, in the optimizer's state too."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gradmend.sparse import setops
from gradmend.sparse.errors import PatternError, SparseError
from gradmend.sparse.nn.weight import SparseWeight
from gradmend.sparse.pattern import Pattern

Optimizers = torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None


@torch.no_grad()
def repattern(weight: SparseWeight, pattern: Pattern, optimizer: Optimizers = None) -> None:
    """Gives `weight` other places. Entries in both keep values, gradients and state; new ones begin with zeros.

    The Parameter stays the same object, so that optimizers go on holding it.
    """
    check_free(weight)
    if pattern.size != weight.pattern.size:
        raise PatternError(f"the new pattern is {pattern.size}, and the weight {weight.pattern.size}.")
    pattern = pattern.canonical().to(weight.values.device)
    old, param = weight.pattern, weight._parameters["values"]
    assert param is not None
    _, here, there = setops.intersection(pattern, old)

    def carried(x: Tensor) -> Tensor:
        made = x.new_zeros(pattern.nnz, *x.shape[1:])
        made[here] = x[there]
        return made

    values, grad = carried(param.data), None if param.grad is None else carried(param.grad)
    states = [(one, one.state.get(param, {})) for one in each(optimizer)]
    moved = [
        {
            n: carried(x)
            for n, x in state.items()
            if isinstance(x, Tensor) and x.shape == param.shape and x.dim()
        }
        for _, state in states
    ]
    param.grad = None  # of the old length: torch checks when data is replaced
    weight.adopt(pattern)
    if pattern.nnz != old.nnz:
        # A graph that is still alive, as that of the last loss, keeps the node that expects gradients of the old length.
        # torch makes a new one only for data of another dtype (2.13).
        other = torch.float32 if param.dtype == torch.float64 else torch.float64
        param.data = torch.empty(0, dtype=other, device=param.device)
    param.data = values
    param.grad = grad
    for (_, state), new in zip(states, moved, strict=True):
        state.update(new)


def check_free(weight: SparseWeight) -> None:
    """Its values are a Parameter, which can take other places."""
    if "values" not in weight._parameters:
        raise SparseError("the values are computed from others (pruned or parametrized): undo that first.")


def each(optimizer: Optimizers) -> list[torch.optim.Optimizer]:
    if optimizer is None:
        return []
    found = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    if any(isinstance(one, torch.optim.LBFGS) for one in found):
        raise SparseError(
            "LBFGS keeps one history for all parameters together, in which entries can't change places: use another "
            "optimizer, or pass optimizer=None and make a new LBFGS after each change."
        )
    return found
