"""torch's sparse constructors, with a backward that goes straight to `values`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.patch.bridge import wrap
from gradmend.sparse.patch.known import indices_of, places_of, supported

Constructor = Callable[..., Tensor]


def _traced(values: Any, options: dict[str, Any]) -> bool:
    """Whether gradients are to reach `values`: otherwise torch's constructor is as good."""
    return (
        isinstance(values, Tensor)
        and values.layout == torch.strided
        and values.requires_grad
        and torch.is_grad_enabled()
        and not options.get("requires_grad")
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
    )


def _cast(values: Tensor, options: dict[str, Any]) -> Tensor:
    """dtype= and device= apply to the values, within the graph."""
    return values.to(dtype=options.pop("dtype", None), device=options.pop("device", None))


def _known(made: Tensor, indices: Any, values: Tensor) -> Tensor:
    """`made`, in the graph of its values. Its places are looked up by the user's own tensor, which outlives this call."""
    stored = indices_of(made)
    places = places_of(made, indices if isinstance(indices, Tensor) else stored[-1])
    return wrap(values, places, lambda v: made, stored)


def coo(torch_coo: Constructor) -> Constructor:
    @wraps(torch_coo)
    def sparse_coo_tensor(*args: Any, **options: Any) -> Tensor:
        given = {**dict(zip(("indices", "values", "size"), args, strict=False)), **options}
        values = given.pop("values", None)
        if len(args) > 3 or not _traced(values, given):
            return torch_coo(*args, **options)
        values = _cast(values, given)
        made = torch_coo(values=values.detach(), **given)
        return _known(made, given["indices"], values) if supported(made) else torch_coo(*args, **options)

    return sparse_coo_tensor


def compressed(torch_compressed: Constructor, layout: torch.layout) -> Constructor:
    @wraps(torch_compressed)
    def sparse_compressed_tensor(
        pointers: Any = None, indices: Any = None, values: Any = None, size: Any = None, **options: Any
    ) -> Tensor:
        names = (
            ("crow_indices", "col_indices") if layout == torch.sparse_csr else ("ccol_indices", "row_indices")
        )
        pointers = options.pop(names[0], pointers)
        indices = options.pop(names[1], indices)
        shape = [] if size is None else [size]
        if not _traced(values, options) or values.dim() != 1:
            return torch_compressed(pointers, indices, values, *shape, **options)
        values = _cast(values, options)
        # torch's keeps the very tensor, and follows it through `values.data =`: so no detached one.
        with torch.no_grad():
            made = torch_compressed(pointers, indices, values, *shape, **options)
        return _known(made, indices, values)

    return sparse_compressed_tensor


def general(torch_general: Constructor, by_layout: dict[torch.layout, Constructor]) -> Constructor:
    @wraps(torch_general)
    def sparse_compressed_tensor(
        compressed_indices: Any, plain_indices: Any, values: Any, *size: Any, **options: Any
    ) -> Tensor:
        own = by_layout.get(options.get("layout"))  # type: ignore[arg-type]
        if own is None or not _traced(values, options):
            return torch_general(compressed_indices, plain_indices, values, *size, **options)
        options.pop("layout")
        return own(compressed_indices, plain_indices, values, *size, **options)

    return sparse_compressed_tensor
