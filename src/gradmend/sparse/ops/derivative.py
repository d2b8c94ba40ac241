"""torch.autograd.grad and backward with sparse tensors among the inputs or outputs: a sparse tensor means its values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.dispatch import TABLE
from gradmend.sparse.errors import SparseError
from gradmend.sparse.tensor import SparseTensor


def _listed(x: Any) -> list[Any]:
    return [x] if isinstance(x, Tensor | SparseTensor) else list(x)


def _dense(x: Any, grads: Any) -> tuple[Any, Any]:
    """Outputs and their gradients as values, by ascending places."""
    outputs, given = _listed(x), None if grads is None else _listed(grads)
    for t, g in zip(outputs, given or (), strict=False):
        if isinstance(t, SparseTensor) and isinstance(g, SparseTensor) and g._pattern != t._pattern:
            raise SparseError(
                "the gradient of a sparse tensor has other places than the tensor: use G.sparse_mask(S)."
            )
    return [_values(t) for t in outputs], None if given is None else [_values(g) for g in given]


def _values(t: Any) -> Any:
    return t._values if isinstance(t, SparseTensor) else t


def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **options: Any) -> tuple[Any, ...]:
    """The gradient with respect to a sparse tensor is one at the same places."""
    wanted = _listed(inputs)
    leaves = [t._given if isinstance(t, SparseTensor) else t for t in wanted]
    ends, grads = _dense(outputs, grad_outputs)
    found = torch.autograd.grad(ends, leaves, grads, *args, **options)
    return tuple(
        t._gradient(g) if isinstance(t, SparseTensor) and g is not None else g
        for t, g in zip(wanted, found, strict=True)
    )


def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **options: Any) -> None:
    if options.get("inputs") is not None:
        options["inputs"] = [
            t._given if isinstance(t, SparseTensor) else t for t in _listed(options["inputs"])
        ]
    ends, grads = _dense(tensors, grad_tensors)
    torch.autograd.backward(ends, grads, *args, **options)


TABLE[torch.autograd.grad] = grad
TABLE[torch.autograd.backward] = backward
