"""Copies, dtypes and devices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.dispatch import Op, implements
from gradmend.sparse.errors import ArgumentError
from gradmend.sparse.tensor import SparseTensor


@implements("to")
def to(S: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
    """dtype, device, both, or another tensor to be like."""
    if args and isinstance(args[0], SparseTensor):
        args = (args[0]._given, *args[1:])
    values = S._values.to(*args, **kwargs)
    return S.like(values)


def _values_method(name: str) -> Op:
    def op(S: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
        values = getattr(S._values, name)(*args, **kwargs)
        return S.like(values)

    op.__name__ = name
    return op


for _name in (
    *(
        "float",
        "double",
        "half",
        "bfloat16",
        "int",
        "long",
        "short",
        "bool",
        "cfloat",
        "cdouble",
        "char",
        "byte",
    ),
    *("cpu", "cuda", "clone", "detach", "contiguous", "pin_memory"),
):
    implements(_name)(_values_method(_name))


@implements("type")
def type_(S: SparseTensor, dtype: torch.dtype) -> SparseTensor:
    if not isinstance(dtype, torch.dtype):
        raise ArgumentError(f"type takes a dtype, not {dtype!r}.")
    return to(S, dtype)


@implements("type_as")
def type_as(S: SparseTensor, other: Any) -> SparseTensor:
    return to(S, other.dtype)


@implements("is_floating_point", method=False)
def is_floating_point(S: SparseTensor) -> bool:
    return S.is_floating_point()


@implements("is_complex", method=False)
def is_complex(S: SparseTensor) -> bool:
    return S.is_complex()


@implements("numel", method=False)
def numel(S: SparseTensor) -> int:
    return S.numel()


@implements("is_nonzero")
def is_nonzero(S: SparseTensor) -> bool:
    return bool(S)


@implements("result_type", method=False)
def result_type(a: Any, b: Any) -> torch.dtype:
    a, b = (x._values if isinstance(x, SparseTensor) else x for x in (a, b))
    return torch.result_type(a, b)


@implements("coalesce", method=False)
def coalesce(S: SparseTensor) -> SparseTensor:
    return S.coalesce()


@implements("item")
def item(S: SparseTensor) -> Any:
    if S.numel() != 1:
        raise ArgumentError(f"item() needs a tensor with one entry, not {S.numel()}.")
    return S.sum().item()


@implements("tolist")
def tolist(S: SparseTensor) -> Any:
    dense: Tensor = S.to_dense()
    return dense.tolist()
