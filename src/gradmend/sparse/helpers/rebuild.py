"""Moving entries about: new places, and which old entry each new one is."""

from __future__ import annotations

import torch
from torch import Tensor

from gradmend.sparse.pattern import Pattern
from gradmend.sparse.places import Size, check_size, linear
from gradmend.sparse.tensor import SparseTensor, make


def rebuild(S: SparseTensor, indices: Tensor, size: Size, take: Tensor | None, name: str) -> SparseTensor:
    """Places in any order (each once); `take` says which entry of S goes there (None: as they are)."""
    check_size(name, size)
    key = linear(indices, size)
    if key.shape[0] > 1 and not bool((key[1:] > key[:-1]).all()):
        order = torch.argsort(key)
        indices = indices[:, order]
        take = order if take is None else take[order]
    return keep(S, Pattern._trusted(indices.contiguous(), size), take)


def keep(S: SparseTensor, pattern: Pattern, take: Tensor | None) -> SparseTensor:
    values = S._values if take is None else S._values.index_select(S.batch_dims, take)
    return make(pattern, values, S.batch_dims)


def only(S: SparseTensor, mask: Tensor) -> SparseTensor:
    """The entries where mask [nnz] holds."""
    take = mask.nonzero().squeeze(1)
    return keep(S, Pattern._trusted(S._pattern._indices[:, take], S._pattern.size), take)
