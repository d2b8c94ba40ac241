"""Losses of two sparse tensors: zero where neither stores anything, and the mean counts those places, as dense does."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import SparseError
from gradmend.sparse.functions.binary import on_union
from gradmend.sparse.functions.dense import to_dense
from gradmend.sparse.tensor import SparseTensor


def _loss(f: Any, a: Any, b: Any, reduction: str) -> Any:
    """f(a, b) with f(0, 0) = 0, entry by entry."""
    if reduction not in ("none", "mean", "sum"):
        raise SparseError(f"reduction={reduction!r}: losses are reduced by mean, sum or none.")
    if not (isinstance(a, SparseTensor) and isinstance(b, SparseTensor)):
        # The dense operand has the size of the result: nothing longer is made.
        dense = [to_dense(x) if isinstance(x, SparseTensor) else x for x in (a, b)]
        if dense[0].shape != dense[1].shape:
            raise SparseError(f"a loss takes equal shapes, not {tuple(a.shape)} and {tuple(b.shape)}.")
        found = f(*dense)
        return found if reduction == "none" else found.mean() if reduction == "mean" else found.sum()
    if a.shape != b.shape:
        raise SparseError(f"a loss takes equal shapes, not {tuple(a.shape)} and {tuple(b.shape)}.")
    made = on_union(f, a, b)
    if reduction == "none":
        return made
    total = made.values().sum()
    return total / made.numel() if reduction == "mean" else total


@implements("mse_loss", method=False)
def mse_loss(
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    weight: Any = None,
) -> Any:
    _no_more(size_average, reduce, weight)
    return _loss(lambda x, y: F.mse_loss(x, y, reduction="none"), input, target, reduction)


@implements("l1_loss", method=False)
def l1_loss(
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    weight: Any = None,
) -> Any:
    _no_more(size_average, reduce, weight)
    return _loss(lambda x, y: F.l1_loss(x, y, reduction="none"), input, target, reduction)


@implements("smooth_l1_loss", method=False)
def smooth_l1_loss(
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Any:
    _no_more(size_average, reduce)
    return _loss(lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=beta), input, target, reduction)


@implements("huber_loss", method=False)
def huber_loss(
    input: Any, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None
) -> Any:
    _no_more(weight)
    return _loss(lambda x, y: F.huber_loss(x, y, reduction="none", delta=delta), input, target, reduction)


@implements("kl_div", method=False)
def kl_div(
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Any:
    _no_more(size_average, reduce)
    if log_target:
        raise SparseError("kl_div of sparse tensors takes log_target=False: exp(0) = 1 at every zero.")

    def f(x: Tensor, y: Tensor) -> Tensor:
        return F.kl_div(x, y, reduction="none")

    if reduction == "batchmean":
        return _loss(f, input, target, "sum") / input.shape[0]
    return _loss(f, input, target, reduction)


def _no_more(*unused: Any) -> None:
    if any(x is not None for x in unused):
        raise SparseError(
            "losses of sparse tensors take `reduction`, and neither weight, size_average nor reduce."
        )


@implements("outer", "ger")
def outer(a: Any, b: Any) -> Any:
    """Of two vectors: sparse, with an entry where an entry of one meets one of the other."""
    from gradmend.sparse.functions.join import kron
    from gradmend.sparse.generate import full

    if any(x.ndim != 1 for x in (a, b)):
        raise SparseError(f"outer takes vectors, not the shapes {tuple(a.shape)} and {tuple(b.shape)}.")
    a, b = (
        x if isinstance(x, SparseTensor) else SparseTensor.from_dense(x, full(tuple(x.shape)).to(x.device))
        for x in (a, b)
    )
    if a.dtype != b.dtype:
        kind = torch.promote_types(a.dtype, b.dtype)
        a, b = a.to(kind), b.to(kind)
    return kron(a.unsqueeze(1), b.unsqueeze(0))
