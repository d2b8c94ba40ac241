"""SparseTensor as a tree with one leaf, its values: for torch.func, DataLoader and other containers.

What comes back in the place of the values may have more dimensions than they had (vmap returns a batch, jacrev a
gradient per output) or one less (vmap takes a batch apart). Where the places went is worked out here, or it is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.utils.data import _utils as data_utils

from gradmend.sparse.errors import PatternError, SparseError
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor, make


class Context:
    """What a tensor is beside its values. `strides` are those of a vmap's whole batch, and no part of equality."""

    def __init__(self, pattern: Pattern, batch_dims: int, dims: int, laid: tuple[Any, ...] | None) -> None:
        self.pattern, self.batch_dims, self.dims, self.laid = pattern, batch_dims, dims, laid

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Context):
            return NotImplemented
        mine, theirs = (self.batch_dims, self.dims), (other.batch_dims, other.dims)
        return mine == theirs and self.pattern == other.pattern

    def __hash__(self) -> int:
        return hash((self.pattern, self.batch_dims, self.dims))

    def __repr__(self) -> str:
        return f"({self.pattern}, batch_dims={self.batch_dims})"


def register() -> None:
    if SparseTensor not in pytree.SUPPORTED_NODES:
        pytree.register_pytree_node(SparseTensor, _flatten, _unflatten)
    data_utils.collate.default_collate_fn_map[SparseTensor] = collate


def _flatten(S: SparseTensor) -> tuple[list[Any], Context]:
    values = S._ordered()
    dims = values.dim() if isinstance(values, Tensor) else -1
    return [values], Context(S.pattern, S.batch_dims, dims, _laid(values))


def _laid(values: Any) -> tuple[Any, ...] | None:
    """Where a vmap's batch lies in memory: (strides of the sample, stride of the batch)."""
    if torch.compiler.is_compiling() or not isinstance(values, Tensor):
        return None
    if not _batched(values):
        top = torch._C._functorch.peek_interpreter_stack()
        inside = top is not None and top.key() == torch._C._functorch.TransformType.Vmap
        return (0, tuple(values.stride())) if inside else None  # the same for all: handed out expanded
    at = torch._C._functorch.maybe_get_bdim(values)
    strides = list(torch._C._functorch.get_unwrapped(values).stride())
    return strides.pop(at), tuple(strides)


def _batched(values: Tensor) -> bool:
    return torch._C._are_functorch_transforms_active() and torch._C._functorch.is_batchedtensor(values)


def _unflatten(leaves: Any, context: Context) -> SparseTensor:
    (values,) = leaves
    if isinstance(values, SparseTensor):
        raise SparseError(
            "the derivative of a sparse tensor with respect to a sparse tensor is none: differentiate with respect "
            "to S.values(), or return the values."
        )
    if not isinstance(values, Tensor) or context.dims < 0:
        return make(context.pattern.canonical(), values, context.batch_dims)  # a tree of something else
    b = context.batch_dims + values.dim() - context.dims
    if values.dim() < context.dims:
        b = _one_less(values, context)
    elif values.dim() == context.dims + 1 and context.laid is not None:
        _check_front(values, context)
    if b < 0 or values.dim() <= b or values.shape[b] != context.pattern.nnz:
        raise PatternError(
            f"values of the shape {tuple(values.shape)} don't fit the {context.pattern.nnz} entries of a sparse tensor "
            f"with {context.batch_dims} batch dimensions: map S.values() instead, or use out_dims=0."
        )
    return (
        SparseTensor(context.pattern, values, batch_dims=b)
        if context.pattern._slot is not None
        else make(context.pattern, values, b)
    )


def _one_less(values: Tensor, context: Context) -> int:
    """vmap takes a dimension away: a batch dimension, or a dense one, but not that of the entries."""
    b = context.batch_dims
    if torch.compiler.is_compiling() or not _batched(values) or values.dim() != context.dims - 1:
        return b
    at = torch._C._functorch.maybe_get_bdim(values)
    if at == b:
        raise SparseError(
            "vmap can't go over the entries of a sparse tensor: give it batch dimensions "
            "(SparseTensor(pattern, values, batch_dims=1)), or map over S.to_dense()."
        )
    return b - 1 if at < b else b


def _check_front(values: Tensor, context: Context) -> None:
    """out_dims other than 0 puts the batch behind the entries, where it can't be told from them by its size."""
    assert context.laid is not None
    batch, sample = context.laid
    if values.shape[0] > 1 and (values.stride(0) != batch or tuple(values.stride()[1:]) != sample):
        raise SparseError(
            "vmap returns a sparse tensor with its batch in front only: use out_dims=0, then S.movedim(0, dim)."
        )


def collate(
    tensors: list[SparseTensor], *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None
) -> SparseTensor:
    """What a DataLoader makes of its samples: a batch dimension if they share a pattern, else a stack."""
    from gradmend.sparse.ops.structure.join import batch, stack

    first = tensors[0]._pattern
    return batch(tensors) if all(t._pattern == first for t in tensors) else stack(tensors)
