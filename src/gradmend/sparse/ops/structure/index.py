"""S[...]: integers, slices, index tensors, masks, None and ..., as in torch."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import OutsideError, SparseError
from gradmend.sparse.helpers.dims import wrap
from gradmend.sparse.helpers.gather import at_entries
from gradmend.sparse.ops.structure.select import lookup, mask_dim, select, slice_dim, take_dim
from gradmend.sparse.ops.structure.shape import sparsify, unsqueeze
from gradmend.sparse.setops import find
from gradmend.sparse.tensor import SparseTensor


@implements("__getitem__")
def getitem(S: Any, index: Any) -> Any:
    if not isinstance(S, SparseTensor):
        if isinstance(S, Tensor):
            return _dense_by_sparse(S, index)
        # torch.compile (2.13) hands S[index] over with its operands swapped.
        S, index = index, S
    if isinstance(index, SparseTensor):
        return masked_select(S, index)
    if isinstance(index, Tensor) and index.dtype == torch.bool and index.dim() == S.ndim > 1:
        return masked_select(S, index)
    items = _spell_out(S, index if isinstance(index, tuple) else (index,))
    tensors = [i for i in items if isinstance(i, Tensor)]
    if len(tensors) > 1 or (tensors and tensors[0].dim() > 1):
        return _pointwise(S, items)
    numbers = [i for i in items if isinstance(i, int) and not isinstance(i, bool)]
    if len(numbers) == S.ndim:
        return _pointwise(S, [torch.tensor(i, device=S.device) if isinstance(i, int) else i for i in items])
    # From the last dimension to the first, so that those still to come keep their numbers.
    out: Any = S
    dim = S.ndim
    for item in reversed(items):
        if item is None:
            continue
        dim -= 1
        if isinstance(out, Tensor):  # a number per item of the batch is left: an ordinary tensor
            out = out[(slice(None),) * dim + (item,)]
        elif isinstance(item, slice):
            out = slice_dim(out, dim, item)
        elif isinstance(item, int):
            out = select(out, dim, item)
        else:
            out = mask_dim(out, dim, item) if item.dtype == torch.bool else take_dim(out, dim, item)
    at = 0
    for item in items:
        if item is None:
            out = unsqueeze(out, at) if isinstance(out, SparseTensor) else out.unsqueeze(at)
        if not isinstance(item, int):
            at += 1
    return out


def _spell_out(S: SparseTensor, index: tuple[Any, ...]) -> list[Any]:
    """One item per dimension (and None for new ones), lists and numpy numbers made torch's."""
    items: list[Any] = []
    given = sum(1 for i in index if i is not None and i is not Ellipsis)
    if given > S.ndim:
        raise OutsideError(f"{given} indices for a tensor of {S.ndim} dimensions.")
    for item in index:
        if item is Ellipsis:
            items += [slice(None)] * (S.ndim - given)
        elif item is None or isinstance(item, slice):
            items.append(item)
        elif isinstance(item, bool):
            raise OutsideError("S[True] and S[False] are not supported: use S[None] for a new dimension.")
        elif isinstance(item, Tensor | list | range) or hasattr(item, "__array__"):
            made = torch.as_tensor(list(item) if isinstance(item, range) else item, device=S.device)
            if made.is_floating_point() or made.is_complex():
                if made.numel() or isinstance(item, Tensor):
                    raise OutsideError(f"index tensors hold whole numbers or booleans, not {made.dtype}.")
                made = made.long()
            items.append(int(made) if made.dim() == 0 and made.dtype != torch.bool else made)
        else:
            try:
                items.append(operator.index(item))
            except TypeError as error:
                raise OutsideError(
                    f"an index is a number, a slice, a tensor or a mask, not {item!r}."
                ) from error
    used = sum(1 for i in items if i is not None)
    return items + [slice(None)] * (S.ndim - used)


def _pointwise(S: SparseTensor, items: list[Any]) -> Tensor:
    """S[rows, cols]: index tensors for all dimensions, matched up entry by entry."""
    if any(isinstance(i, slice) or i is None for i in items):
        raise SparseError(
            "index tensors of several dimensions go with an index for every dimension, such as S[rows, cols]; "
            "with slices, index one dimension after the other: S[rows][:, cols]."
        )
    index = []
    for item in items:
        if isinstance(item, Tensor) and item.dtype == torch.bool:
            item = item.nonzero().squeeze(1)
        index.append(torch.as_tensor(item, device=S.device))
    return lookup(sparsify(S), index)


@implements("masked_select")
def masked_select(S: SparseTensor, mask: Any) -> Tensor:
    """The numbers where the mask holds, zeros included, as one dense vector."""
    if isinstance(S, Tensor):
        return _dense_by_sparse(S, mask)
    S = sparsify(S)
    if mask.dtype != torch.bool:
        raise SparseError(f"a mask is boolean, not {mask.dtype}: write mask != 0.")
    if isinstance(mask, SparseTensor):
        mask = sparsify(mask)
        places = mask._pattern._indices[:, mask._values.bool()]
        return lookup(S, tuple(places))
    if tuple(mask.shape) != tuple(S.shape):
        raise OutsideError(
            f"a mask of the shape {tuple(mask.shape)} doesn't fit S of the shape {tuple(S.shape)}."
        )
    chosen = at_entries(S, mask).nonzero().squeeze(1)
    flat = mask.reshape(-1).nonzero().squeeze(1)
    out = S._values.new_zeros(flat.shape[0])
    return out.index_copy(0, torch.searchsorted(flat, S._pattern._keys()[chosen]), S._values[chosen])


def _dense_by_sparse(X: Tensor, mask: SparseTensor) -> Tensor:
    """X[mask] for a sparse mask."""
    places = sparsify(mask)
    if places.dtype != torch.bool:
        raise OutsideError("a sparse index must be a mask (bool): X[S != 0].")
    return X[tuple(places._pattern._indices[:, places._values])]


@implements("sparse_mask")
def sparse_mask(X: Any, S: SparseTensor) -> SparseTensor:
    """X at the places of S; a sparse X gives zero where it stores nothing."""
    if isinstance(X, Tensor):
        return S.like(at_entries(S, X))
    if X.shape != S.shape:
        raise SparseError(
            f"sparse_mask takes a mask of the same shape, not {tuple(S.shape)} for {tuple(X.shape)}."
        )
    if (X.batch_dims, X.dense_dim()) != (S.batch_dims, S.dense_dim()) or X.batch_dims:
        X, S = sparsify(X), sparsify(S)
    there, at = find(X._pattern, S._pattern._keys())
    n = X.batch_dims
    values = X._values
    shape = (*values.shape[:n], S.nnz, *values.shape[n + 1 :])
    if X.nnz == 0:
        return S.like(values.new_zeros(shape), batch_dims=n)
    found = values.index_select(n, at)
    found = torch.where(there.view(*[1] * n, -1, *[1] * X.dense_dim()), found, torch.zeros_like(found))
    return S.like(found, batch_dims=n)


@implements("gather")
def gather(S: SparseTensor, dim: int, index: Tensor) -> Tensor:
    """torch.gather: a dense result of the index's shape."""
    if S.batch_dims or S.dense_dim():
        S = sparsify(S)
    d = wrap(S, dim)
    if not isinstance(index, Tensor) or index.dim() != S.ndim:
        raise SparseError(f"gather takes an index of {S.ndim} dimensions, as S has.")
    if index.dtype not in (torch.int64, torch.int32):
        raise SparseError(f"gather takes an index of whole numbers (int64, int32), not {index.dtype}.")
    grid = torch.meshgrid(*[torch.arange(n, device=S.device) for n in index.shape], indexing="ij")
    return lookup(S, [index if i == d else g for i, g in enumerate(grid)])
