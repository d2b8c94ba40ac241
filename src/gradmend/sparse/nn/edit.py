"""Gradients changed by place: torch's own elementwise functions refuse a sparse gradient, in a hook as elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.errors import SparseError


def edit_grad(f: Callable[..., Tensor], *, rows: bool = False) -> Callable[[Tensor], Tensor]:
    """A hook for `parameter.register_hook` that gives f the numbers of a gradient, dense or sparse.

    >>> table = torch.nn.Embedding(10, 4, sparse=True)
    >>> handle = table.weight.register_hook(edit_grad(lambda values: values.clamp(-1, 1)))

    Of a sparse gradient f sees each place once, repeats summed: [places, ...]. With `rows=True` it is given the rows
    too, as `f(values, rows)`: all rows, of a dense gradient.
    """

    def hook(grad: Tensor) -> Tensor:
        if grad.layout == torch.strided:
            every = (torch.arange(grad.shape[0], device=grad.device),) if rows else ()
            return f(grad, *every)
        if grad.layout != torch.sparse_coo:
            raise SparseError(f"edit_grad takes dense and COO gradients, not {grad.layout}.")
        grad = grad.coalesce()
        index, values = grad.indices(), grad.values()
        made: Any = f(values, index[0] if index.shape[0] == 1 else index) if rows else f(values)
        if not isinstance(made, Tensor) or made.shape != values.shape:
            got = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
            raise SparseError(f"f was given numbers of the shape {tuple(values.shape)}, and returned {got}.")
        return torch.sparse_coo_tensor(index, made, grad.shape, is_coalesced=True, check_invariants=False)

    return hook
