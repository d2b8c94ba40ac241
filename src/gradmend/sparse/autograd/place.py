"""Short results written into long ones: a row per group into all rows, without a second copy of the rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.autograd.primitive import forward_mode

_SMALL = 1 << 12


def in_place_is_fine() -> bool:
    """Nobody traces or transforms: writing into a tensor of our own saves a copy of it."""
    return not (
        torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or forward_mode()
    )


def written_out(size: tuple[int, ...], values: Tensor) -> bool:
    """A matrix so small that to write out its zeros costs less than another call of torch's, and nobody watches.

    Then `put_` and `take` may serve, which in deterministic mode refuse (2.13).
    """
    return (
        len(size) == 2
        and size[0] * size[1] <= _SMALL
        and values.dim() == 1
        and values.is_cpu
        and not (values.requires_grad and torch.is_grad_enabled())
        and not torch.are_deterministic_algorithms_enabled()
        and in_place_is_fine()
    )


def put(total: int, ids: Tensor, rows: Tensor, fill: Any = 0) -> Tensor:
    """[total, ...] of `fill`, with rows[i] at ids[i]."""
    shape = (total, *rows.shape[1:])
    if in_place_is_fine():
        whole = rows.new_zeros(shape) if fill == 0 else rows.new_full(shape, fill)
        return whole.index_copy_(0, ids, rows)
    # Not rows.new_full: under vmap that would be a batch of them.
    return torch.full(shape, fill, dtype=rows.dtype, device=rows.device).index_copy(0, ids, rows)


def add_into(fresh: Tensor, more: Tensor, alpha: Any = 1) -> Tensor:
    """fresh + alpha * more, for a `fresh` that nobody else holds."""
    same = (
        fresh.dtype == torch.promote_types(fresh.dtype, more.dtype)
        and torch.broadcast_shapes(fresh.shape, more.shape) == fresh.shape
    )
    if same and in_place_is_fine():
        return fresh.add_(more, alpha=alpha)
    return torch.add(fresh, more, alpha=alpha)
