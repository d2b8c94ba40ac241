"""Losses of two sparse tensors: zero where neither stores anything, and the mean counts those places, as dense does."""

from __future__ import annotations

import inspect
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import SparseError
from gradmend.sparse.ops.conversions.dense import to_dense
from gradmend.sparse.ops.elementwise.binary import on_union
from gradmend.sparse.tensor import SparseTensor

_OLD = ("weight", "size_average", "reduce")


def _register(name: str) -> None:
    torchs_own = getattr(F, name)
    names = tuple(inspect.signature(torchs_own).parameters)[2:]
    reductions = ("none", "mean", "sum", *(("batchmean",) if name == "kl_div" else ()))

    def loss(input: Any, target: Any, *rest: Any, **options: Any) -> Any:
        if len(rest) > len(names) or any(k not in names for k in options):
            raise SparseError(f"{name} takes two tensors, and {', '.join(names)}.")
        options = {**dict(zip(names, rest, strict=False)), **options}
        if any(options.pop(k, None) is not None for k in _OLD):
            raise SparseError(
                "losses of sparse tensors take `reduction`, and neither weight, size_average nor reduce."
            )
        if options.get("log_target"):
            raise SparseError("kl_div of sparse tensors takes log_target=False: exp(0) = 1 at every zero.")
        reduction = options.pop("reduction", "mean")
        if reduction not in reductions:
            raise SparseError(f"reduction={reduction!r}: {name} is reduced by {', '.join(reductions)}.")

        def of_entries(x: Tensor, y: Tensor) -> Tensor:
            return torchs_own(x, y, reduction="none", **options)

        made = _by_entry(of_entries, input, target)
        if reduction == "none":
            return made
        total = made._values.sum() if isinstance(made, SparseTensor) else made.sum()
        if reduction == "sum":
            return total
        if not (made.is_floating_point() or made.is_complex()):
            raise SparseError(
                f"the mean of {made.dtype} has no whole result: convert the tensors with .float()."
            )
        return total / (made.shape[0] if reduction == "batchmean" else made.numel())

    loss.__name__ = loss.__qualname__ = name
    implements(name, method=False)(loss)


def _by_entry(f: Any, a: Any, b: Any) -> Any:
    """f(a, b) with f(0, 0) = 0."""
    for x in (a, b):
        if not isinstance(x, Tensor | SparseTensor):
            raise SparseError(f"a loss takes tensors, not {type(x).__name__}.")
    if a.shape != b.shape:
        raise SparseError(f"a loss takes equal shapes, not {tuple(a.shape)} and {tuple(b.shape)}.")
    if isinstance(a, SparseTensor) and isinstance(b, SparseTensor):
        return on_union(f, a, b)
    # The dense operand has the size of the result: nothing longer is made.
    return f(*(to_dense(x) if isinstance(x, SparseTensor) else x for x in (a, b)))


for _name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"):
    _register(_name)
