"""torch.nn.utils' clipping for gradients that are dense, COO or CSR, and for SparseTensors: torch's own refuses them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gradmend.sparse.errors import SparseError
from gradmend.sparse.tensor import SparseTensor

Parameters = Tensor | SparseTensor | Iterable[Any]
# Plain tensors that are one rank's part of a larger one -> the process group that has all of it.
_parts: Any = WeakTensorKeyDictionary()


def part_of(group: Any, param: Tensor) -> None:
    """Norms of this parameter's gradient are those of all ranks' parts."""
    if param.is_leaf:  # what is no leaf has no gradient to clip
        _parts[param] = group


def _group_of(grad: Any) -> Any:
    return next((group for p, group in _parts.items() if p.grad is grad), None)


def _owners(parameters: Parameters) -> list[Tensor]:
    """The tensors that hold gradients."""
    given = [parameters] if isinstance(parameters, Tensor | SparseTensor) else list(parameters)
    found = []
    for p in given:
        if not isinstance(p, Tensor | SparseTensor):
            raise SparseError(f"parameters are Tensors or SparseTensors, not {type(p).__name__}.")
        found.append(p._given if isinstance(p, SparseTensor) else p)
    return [p for p in found if p.grad is not None]


def _numbers(grad: Any) -> Tensor:
    """Each place's gradient once: repeated places of a COO gradient stand for their sum."""
    if isinstance(grad, SparseTensor):
        return grad._values
    if grad.layout == torch.strided:
        return grad
    if grad.layout == torch.sparse_coo:
        return grad.coalesce()._values()
    return grad.values()


@torch.no_grad()
def get_total_norm(
    tensors: Any,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm of all of them as one vector; for gradients, of whatever layout, pass [p.grad for p in parameters].

    With gradients that are sharded over ranks (DTensor, ShardedEmbedding) all ranks must call this.
    """
    given = [tensors] if isinstance(tensors, Tensor | SparseTensor) else list(tensors)
    numbers = [_numbers(t) for t in given]
    if not numbers:
        return torch.tensor(0.0)
    norms = []
    for t, x in zip(given, numbers, strict=True):
        if (group := _group_of(t)) is not None:
            norms.append(_over_ranks(x, float(norm_type), group))
        elif x.numel():
            norms.append(_whole(torch.linalg.vector_norm(x, float(norm_type))))
    if not norms:
        return torch.zeros((), device=numbers[0].device)
    total = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]), float(norm_type))
    if error_if_nonfinite and bool(total.isnan() | total.isinf()):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients is non-finite, so it cannot be clipped: pass "
            f"error_if_nonfinite=False to scale by it all the same."
        )
    return total


@torch.no_grad()
def clip_grad_norm_(
    parameters: Parameters,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scales all gradients in place so that their common norm is at most `max_norm`; returns what it was."""
    owners = _owners(parameters)
    total = get_total_norm([p.grad for p in owners], norm_type, error_if_nonfinite)
    # As torch: a factor of 1 costs less than asking whether it is.
    factor = torch.clamp(float(max_norm) / (total + 1e-6), max=1.0)
    for p in owners:
        grad = p.grad
        assert grad is not None
        _held(grad).mul_(factor.to(grad.device))
    return total


@torch.no_grad()
def clip_grad_value_(parameters: Parameters, clip_value: float, foreach: bool | None = None) -> None:
    """Clamps each number of each gradient to [-clip_value, clip_value], in place."""
    bound = float(clip_value)
    for p in _owners(parameters):
        grad = p.grad
        assert grad is not None
        if grad.layout == torch.sparse_coo and not grad.is_coalesced():
            grad = p.grad = grad.coalesce()  # what is clamped is the sum of repeats
        _held(grad).clamp_(-bound, bound)


def _whole(norm: Tensor) -> Tensor:
    """Of a gradient that lies on many ranks (DTensor), the norm of all of it."""
    made: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return made


def _over_ranks(mine: Tensor, order: float, group: Any) -> Tensor:
    """Every rank takes part, also one that has no numbers."""
    from torch import distributed as dist

    if mine.numel():
        norm = torch.linalg.vector_norm(mine, order).reshape(1)
    else:
        norm = torch.full((1,), 0.0 if order >= 0 else float("inf"), dtype=mine.dtype, device=mine.device)
    every = [torch.empty_like(norm) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, norm, group=group)
    found = torch.cat(every)
    return found.sum() if order == 0 else torch.linalg.vector_norm(found, order)


def _held(grad: Tensor) -> Tensor:
    """The memory of a gradient's numbers, on this rank."""
    if hasattr(grad, "to_local"):
        local: Tensor = grad.to_local()
        return local
    if grad.layout == torch.strided:
        return grad
    return grad._values() if grad.layout == torch.sparse_coo else grad.values()
