"""SparseTensor as a tree with one leaf, its values: for torch.func, DataLoader and other containers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.utils._pytree as pytree
from torch.utils.data import _utils as data_utils

from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor, make


def register() -> None:
    if SparseTensor not in pytree.SUPPORTED_NODES:
        pytree.register_pytree_node(SparseTensor, _flatten, _unflatten)
    data_utils.collate.default_collate_fn_map[SparseTensor] = collate


def _flatten(S: SparseTensor) -> tuple[list[Any], tuple[Pattern, int]]:
    return [S.values()], (S.pattern, S.batch_dims)


def _unflatten(leaves: Any, context: tuple[Pattern, int]) -> SparseTensor:
    (values,) = leaves
    return make(context[0], values, context[1])


def collate(
    tensors: list[SparseTensor], *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None
) -> SparseTensor:
    """What a DataLoader makes of its samples: a batch dimension if they share a pattern, else a stack."""
    from gradmend.sparse.functions.join import batch, stack

    first = tensors[0].pattern
    return batch(tensors) if all(t.pattern == first for t in tensors) else stack(tensors)
