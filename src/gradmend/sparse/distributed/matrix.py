"""A sparse matrix whose rows lie on many ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from gradmend.sparse.distributed.halo import Halo
from gradmend.sparse.distributed.shards import Shards, agree
from gradmend.sparse.errors import PatternError, SparseError
from gradmend.sparse.kernels.grouping import grouped
from gradmend.sparse.nn.clip import part_of
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor, make


class ShardedSparseTensor:
    """This rank's rows of a sparse matrix, and the plan by which it gets the rows of X that they need.

    >>> S = ShardedSparseTensor.scatter(full, mesh)     # doctest: +SKIP
    >>> y = S @ x                                       # x and y: this rank's rows, or DTensors of all

    `S @ X` sends the rows of X that other ranks have entries for, once each, and their gradients back. Values are an
    ordinary tensor on each rank: a Parameter of this rank, and so is the state of its optimizer. One dimension of a larger
    mesh is taken with `replicate=False`: you sum gradients of the values over the others.
    """

    def __init__(
        self,
        local: SparseTensor,
        size: tuple[int, int],
        mesh: DeviceMesh | None = None,
        *,
        replicate: bool | None = None,
    ) -> None:
        if replicate:
            raise SparseError("values are yours to replicate: pass replicate=False, and sum their gradients.")
        self.size = (int(size[0]), int(size[1]))
        self.rows, self.cols = (Shards(n, mesh, replicate) for n in self.size)
        self.rows.sends(local.device)
        agree(self.rows, "the size of a matrix", *self.size)
        if local.pattern.ndim != 2 or local.batch_dims or local.dense_dim():
            raise PatternError("a sharded matrix has two sparse dimensions, and no others.")
        if tuple(local.shape) != (self.rows.count, self.size[1]):
            low, high = self.rows.bounds()
            raise PatternError(
                f"rank {self.rows.rank} has the rows {low} to {high} of {self.size}, and was given {tuple(local.shape)}."
            )
        self.local = local = local.coalesce()
        groups = grouped(local.pattern.col, self.size[1])
        self.halo = Halo(self.cols, groups.rows)
        # The same rows, with columns numbered by those that occur: what is fetched is the operand.
        index = torch.stack([local.pattern.row, groups.each])
        self._narrow = Pattern.sorted(index, (self.rows.count, groups.rows.shape[0]))

    @classmethod
    def scatter(
        cls, S: SparseTensor, mesh: DeviceMesh | None = None, *, replicate: bool | None = None
    ) -> ShardedSparseTensor:
        """From a matrix that every rank has whole; values keep their graph."""
        if S.pattern.ndim != 2 or S.batch_dims or S.dense_dim():
            raise PatternError("a sharded matrix has two sparse dimensions, and no others.")
        low, high = Shards(S.shape[0], mesh, replicate).bounds()
        return cls(S[low:high], (S.shape[0], S.shape[1]), mesh, replicate=replicate)

    def values(self) -> Tensor:
        """One for each entry of this rank's rows."""
        return self.local.values()

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.size)

    def with_values(self, values: Tensor) -> ShardedSparseTensor:
        """Other values at the same places, by the same plan."""
        if values.shape != self.local.values().shape:
            raise PatternError(f"there are {self.local.nnz} entries, and values of {tuple(values.shape)}.")
        made = object.__new__(ShardedSparseTensor)
        made.__dict__.update(self.__dict__)
        made.local = make(self.local.pattern, values)
        return made

    def __matmul__(self, X: Any) -> Any:
        if isinstance(X, DTensor):
            if tuple(X.placements) != (Shard(0),) or X.shape[0] != self.size[1]:
                raise SparseError(
                    f"S @ X takes an X of {self.size[1]} rows placed as Shard(0), not {X.placements}."
                )
            made = self @ X.to_local()
            shape = torch.Size((self.size[0], *made.shape[1:]))
            stride = torch.empty(shape, device="meta").stride()
            return DTensor.from_local(
                made, X.device_mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
            )
        if not isinstance(X, Tensor) or X.dim() != 2:
            raise SparseError("S @ X takes this rank's rows of a matrix, or a DTensor of all of them.")
        for shard in (X, self.local._given):
            part_of(self.rows.group, shard)
        return make(self._narrow, self.local.values()) @ self.halo.fetch(X)

    def __repr__(self) -> str:
        low, high = self.rows.bounds()
        sent = sum(self.halo.send) - self.halo.send[self.rows.rank]
        return (
            f"ShardedSparseTensor({self.size[0]} x {self.size[1]}, rows {low} to {high} on rank {self.rows.rank}, "
            f"{self.local.nnz} entries, sends {sent} rows a product)"
        )
