"""Which of torch's operations are taken over on sparse tensors, and how results are handed back.

Only calls that a gradient will flow through are rerouted; everything else reaches torch untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.helpers.gather import pick
from gradmend.sparse.patch.bridge import by_values, entries, to_torch, watched
from gradmend.sparse.patch.known import supported
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor

Op = Callable[..., Any]

masked = 0  # how many patch(masked=True) are in effect

PRODUCTS = ("mm", "matmul", "__matmul__", "mv", "addmm", "addmv", "linear")
SUMS = ("sum",)
ELEMENTWISE = (
    *("add", "__add__", "__radd__", "sub", "subtract", "__sub__", "mul", "multiply", "__mul__", "__rmul__"),
    *(
        "div",
        "divide",
        "true_divide",
        "__truediv__",
        "pow",
        "__pow__",
        "neg",
        "__neg__",
        "abs",
        "__abs__",
        "sqrt",
    ),
    *(
        "square",
        "sin",
        "tan",
        "asin",
        "atan",
        "sinh",
        "tanh",
        "asinh",
        "atanh",
        "expm1",
        "log1p",
        "erf",
        "relu",
    ),
    *("leaky_relu", "gelu", "elu", "silu", "clamp", "clip", "softmax", "log_softmax"),
)
OTHERS = (
    *("mean", "norm", "vector_norm", "amax", "amin", "prod", "trace", "diagonal", "einsum", "kron"),
    *("index_select", "select", "narrow", "cat", "concat", "stack", "vstack", "unsqueeze", "reshape"),
    *("t", "transpose", "permute", "__getitem__", "coalesce"),
)
NAMES = (*PRODUCTS, *SUMS, *ELEMENTWISE, *OTHERS)


def _tensors(args: tuple[Any, ...]) -> Iterator[Tensor]:
    for a in args:
        if isinstance(a, Tensor):
            yield a
        elif isinstance(a, list | tuple):
            yield from (x for x in a if isinstance(x, Tensor))


def _any_sparse(args: tuple[Any, ...]) -> bool:
    strided = torch.strided
    for a in args:
        if isinstance(a, Tensor):
            if a.layout is not strided:
                return True
        elif isinstance(a, list | tuple) and any(
            isinstance(x, Tensor) and x.layout is not strided for x in a
        ):
            return True
    return False


def _ours(args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> bool:
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or kwargs.get("out") is not None:
        return False
    if torch._C._are_functorch_transforms_active():
        return False
    found = list(_tensors((*args, *kwargs.values())))
    if name == "coalesce" and (args[0].layout != torch.sparse_coo or args[0].is_coalesced()):
        return False  # torch raises, or returns the tensor itself
    if not any(t.requires_grad for t in found):
        return False
    return all(t.layout == torch.strided or _answered(t) for t in found)


def _answered(A: Tensor) -> bool:
    """Whether the gradient of A is ours to compute."""
    if not supported(A) or watched(A):
        return False
    return not A.requires_grad or masked > 0 or by_values(A)


def route(original: Op, op: Op, name: str) -> Op:
    """`original`, except on sparse tensors that something trains through."""

    @wraps(original)
    def patched(*args: Any, **kwargs: Any) -> Any:
        if not (_any_sparse(args) or (kwargs and _any_sparse(tuple(kwargs.values())))) or not _ours(
            args, kwargs, name
        ):
            return original(*args, **kwargs)
        first = next(t for t in _tensors((*args, *kwargs.values())) if t.layout != torch.strided)
        args = tuple(_convert(a) for a in args)
        kwargs = {key: _convert(a) for key, a in kwargs.items()}
        result = op(*args, **kwargs)
        if result is NotImplemented:
            return result
        if name in SUMS and isinstance(result, Tensor) and result.dim():
            dim = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
            return _as_sparse_sum(result, args[0], dim, first.layout)
        return _hand_back(result, _result_layout(first, name))

    return patched


def _convert(a: Any) -> Any:
    if isinstance(a, Tensor) and a.layout != torch.strided:
        return entries(a)
    if isinstance(a, list | tuple):
        return type(a)(_convert(x) for x in a) if type(a) in (list, tuple) else a
    return a


def _result_layout(first: Tensor, name: str) -> torch.layout:
    if name in ("t", "transpose", "permute"):  # torch turns CSR into CSC and back
        return {torch.sparse_csr: torch.sparse_csc, torch.sparse_csc: torch.sparse_csr}.get(
            first.layout, first.layout
        )
    return first.layout


def _hand_back(result: Any, layout: torch.layout) -> Any:
    if isinstance(result, SparseTensor):
        return to_torch(result._pattern, result._values, layout)
    if isinstance(result, list | tuple) and type(result) in (list, tuple):
        return type(result)(_hand_back(r, layout) for r in result)
    return result


def _as_sparse_sum(result: Tensor, S: SparseTensor, dim: Any, layout: torch.layout) -> Tensor:
    """torch's sum over dimensions of a sparse tensor is sparse: a place is stored if an entry fell on it."""
    summed = {d % S.ndim for d in ((dim,) if isinstance(dim, int) else dim)}
    index = S._pattern._indices
    if result.dim() == S.ndim:  # keepdim
        index = torch.stack([torch.zeros_like(x) if d in summed else x for d, x in enumerate(index)])
    else:
        if layout != torch.sparse_coo:
            return result  # torch has no answer here: a dense one serves
        index = index[[d for d in range(S._pattern.ndim) if d not in summed]]
    if not len(index):
        return result
    places = Pattern(index, tuple(result.shape[: len(index)])).canonical()
    return to_torch(places, pick(result, places), layout)
