"""torch.autograd.grad and backward with sparse tensors among the inputs or outputs: a sparse tensor means its values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.dispatch import TABLE
from gradmend.sparse.tensor import SparseTensor


def _listed(x: Any) -> list[Any]:
    return [x] if isinstance(x, Tensor | SparseTensor) else list(x)


def _dense(x: Any) -> Any:
    """As outputs and their gradients: values, in the order of the pattern."""
    if x is None:
        return None
    return [t.values() if isinstance(t, SparseTensor) else t for t in _listed(x)]


def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **options: Any) -> tuple[Any, ...]:
    """The gradient with respect to a sparse tensor is one at the same places."""
    wanted = _listed(inputs)
    leaves = [t._given if isinstance(t, SparseTensor) else t for t in wanted]
    found = torch.autograd.grad(_dense(outputs), leaves, _dense(grad_outputs), *args, **options)
    return tuple(
        t._gradient(g) if isinstance(t, SparseTensor) and g is not None else g
        for t, g in zip(wanted, found, strict=True)
    )


def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **options: Any) -> None:
    if options.get("inputs") is not None:
        options["inputs"] = [
            t._given if isinstance(t, SparseTensor) else t for t in _listed(options["inputs"])
        ]
    torch.autograd.backward(_dense(tensors), _dense(grad_tensors), *args, **options)


TABLE[torch.autograd.grad] = grad
TABLE[torch.autograd.backward] = backward
