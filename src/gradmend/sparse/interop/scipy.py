"""From and to scipy.sparse (imported when used)."""

from __future__ import annotations

from typing import Any

import torch

from gradmend.sparse.errors import SparseError
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor


def from_scipy(A: Any) -> SparseTensor:
    """Any scipy.sparse matrix or array; the values are copied."""
    coo = A.tocoo()
    index = torch.stack([torch.as_tensor(i, dtype=torch.int64) for i in _coords(coo)])
    return SparseTensor(Pattern(index, coo.shape), torch.tensor(coo.data))


_LAYOUTS = ("csr", "csc", "coo", "bsr", "lil", "dok", "dia")


def _coords(coo: Any) -> tuple[Any, ...]:
    return tuple(coo.coords) if hasattr(coo, "coords") else (coo.row, coo.col)


def to_scipy(S: SparseTensor, layout: str = "csr") -> Any:
    import scipy.sparse

    if layout not in _LAYOUTS:
        raise SparseError(f"scipy has the layouts {', '.join(_LAYOUTS)}, not {layout!r}.")
    if S.ndim > 2 and layout != "coo":
        raise SparseError(
            f"scipy's {layout} takes 1 or 2 dimensions, and S has {S.ndim}: reshape it, or use coo."
        )
    if S.batch_dims or S.dense_dim():
        S = S.sparsify()
    if S.requires_grad:
        raise SparseError("scipy knows no gradients: call S.detach().to_scipy().")
    values = S._values.cpu()
    if values.dtype == torch.bfloat16:
        raise SparseError("scipy has no bfloat16: call S.float().to_scipy().")
    made = scipy.sparse.coo_array(
        (values.numpy(), tuple(S._pattern._indices.cpu().numpy())), shape=tuple(S.shape)
    )
    return made.asformat(layout)
