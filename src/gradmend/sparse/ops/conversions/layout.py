"""to_sparse_coo and its kin: out of our hands, into torch's own layouts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import SparseError
from gradmend.sparse.interop.layouts import to_layout
from gradmend.sparse.tensor import SparseTensor


@implements("to_sparse_coo")
def to_sparse_coo(S: SparseTensor) -> Tensor:
    return to_layout(S, torch.sparse_coo)


@implements("to_sparse_csr")
def to_sparse_csr(S: SparseTensor, dense_dim: int | None = None) -> Tensor:
    _no_other(S, dense_dim)
    return to_layout(S, torch.sparse_csr)


@implements("to_sparse_csc")
def to_sparse_csc(S: SparseTensor, dense_dim: int | None = None) -> Tensor:
    _no_other(S, dense_dim)
    return to_layout(S, torch.sparse_csc)


@implements("to_sparse_bsr")
def to_sparse_bsr(S: SparseTensor, blocksize: tuple[int, int], dense_dim: int | None = None) -> Tensor:
    _no_other(S, dense_dim)
    return to_layout(S, torch.sparse_bsr, _blocks(S, blocksize))


@implements("to_sparse_bsc")
def to_sparse_bsc(S: SparseTensor, blocksize: tuple[int, int], dense_dim: int | None = None) -> Tensor:
    _no_other(S, dense_dim)
    return to_layout(S, torch.sparse_bsc, _blocks(S, blocksize))


def _blocks(S: SparseTensor, blocksize: Any) -> tuple[int, int]:
    if isinstance(blocksize, Tensor) or len(blocksize) != 2 or any(int(n) <= 0 for n in blocksize):
        raise SparseError(f"a block's size is two positive numbers, not {blocksize!r}.")
    size = S._pattern.size
    if len(size) == 2 and (size[0] % int(blocksize[0]) or size[1] % int(blocksize[1])):
        raise SparseError(
            f"blocks of {tuple(blocksize)} don't fill a matrix of {' x '.join(map(str, size))}."
        )
    return blocksize[0], blocksize[1]


def _no_other(S: SparseTensor, dense_dim: int | None) -> None:
    if dense_dim is not None and (isinstance(dense_dim, Tensor) or dense_dim != S.dense_dim()):
        raise SparseError(
            f"S has {S.dense_dim()} dense dimensions, and can't be written out with {dense_dim!r}."
        )


@implements("to_sparse", "to_torch")
def to_sparse(S: SparseTensor, *, layout: torch.layout = torch.sparse_coo, blocksize: Any = None) -> Tensor:
    return to_layout(S, layout, blocksize)


@implements("to_scipy")
def to_scipy(S: SparseTensor, layout: str = "csr") -> Any:
    from gradmend.sparse.interop.scipy import to_scipy as convert

    return convert(S, layout)


@implements("to_edge_index")
def to_edge_index(S: SparseTensor) -> tuple[Tensor, Tensor]:
    """(edge_index [2, edges], weights): torch_geometric's pair."""
    return S.indices(), S.values()
