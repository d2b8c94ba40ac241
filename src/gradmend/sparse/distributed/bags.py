"""Many tables over many ranks: bags of ids summed, with one exchange for all tables of one width."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from gradmend.sparse.distributed.embedding import ShardedEmbedding
from gradmend.sparse.errors import SparseError
from gradmend.sparse.kernels import checks
from gradmend.sparse.nn.embedding import _inside, bags_of

Ids = Tensor | tuple[Tensor, Tensor]


class ShardedEmbeddingBagCollection(nn.Module):
    """Tables by name, (rows, width) each, their rows over the ranks of a mesh.

    >>> tables = ShardedEmbeddingBagCollection({"user": (1000, 16), "item": (5000, 16)}, mesh)  # doctest: +SKIP
    >>> tables({"user": ids, "item": (flat_ids, offsets)})["item"].shape                        # doctest: +SKIP
    torch.Size([32, 16])

    Ids are [bags, n], or a vector with the offset where each bag begins. Each rank looks up its own batch. Tables of one
    width are one ShardedEmbedding (`tables.of_width["16"]`), and travel together: three all-to-alls in a look-up and one
    in its backward, however many tables. Every call names the same tables on all ranks.

    `full`: whole tables by name. Other options are those of ShardedEmbedding.
    """

    def __init__(
        self,
        tables: Mapping[str, tuple[int, int]],
        mesh: DeviceMesh | None = None,
        *,
        mode: str = "sum",
        full: Mapping[str, Tensor] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if mode not in ("sum", "mean"):
            raise SparseError(
                f'a ShardedEmbeddingBagCollection has the modes "sum" and "mean", not {mode!r}.'
            )
        if full is not None and set(full) != set(tables):
            raise SparseError(f"full has the tables {sorted(full)}, and the collection {sorted(tables)}.")
        self.tables, self.mode = {name: (int(n), int(d)) for name, (n, d) in tables.items()}, mode
        self.first: dict[str, int] = {}  # where the rows of a table begin among those of its width
        self.of_width = nn.ModuleDict()
        for width in sorted({d for _, d in self.tables.values()}):
            names = [name for name, (_, d) in self.tables.items() if d == width]
            total = 0
            for name in names:
                self.first[name], total = total, total + self.tables[name][0]
            whole = None if full is None else torch.cat([self._fitting(name, full[name]) for name in names])
            self.of_width[str(width)] = ShardedEmbedding(total, width, mesh, full=whole, **options)

    def _fitting(self, name: str, table: Tensor) -> Tensor:
        if tuple(table.shape) != self.tables[name]:
            raise SparseError(
                f"the table {name!r} is {self.tables[name]}, and full has {tuple(table.shape)}."
            )
        return table

    def forward(self, ids: Mapping[str, Ids]) -> dict[str, Tensor]:
        if strange := [name for name in ids if name not in self.tables]:
            raise SparseError(
                f"there is no table {strange[0]!r}: the collection has {', '.join(self.tables)}."
            )
        made: dict[str, Tensor] = {}
        for width, table in self.of_width.items():
            names = [name for name in self.tables if name in ids and self.tables[name][1] == int(width)]
            if names:
                made.update(self._of_width(table, names, ids))
        return {name: made[name] for name in ids}

    def _of_width(self, table: nn.Module, names: list[str], ids: Mapping[str, Ids]) -> dict[str, Tensor]:
        """One look-up for all: bags of one table after those of another."""
        flat, ends, counts, before = [], [], [], 0
        for name in names:
            given = ids[name]
            values, offsets = given if isinstance(given, tuple) else (given, None)
            self._inside(name, values)
            one, ptr = bags_of(values, offsets)
            flat.append(one + self.first[name])
            ends.append(ptr[:-1] + before)
            counts.append(ptr.shape[0] - 1)
            before += one.shape[0]
        rows, each = table.looked_up(torch.cat(flat))  # type: ignore[operator]
        out = F.embedding_bag(each, rows, torch.cat(ends), mode=self.mode)
        return dict(zip(names, out.split(counts), strict=True))

    def _inside(self, name: str, ids: Tensor) -> None:
        """Rows of the next table follow: an id outside must never be taken for one of them."""
        n = self.tables[name][0]
        _inside(ids, n)
        if not checks.looked_at(ids):
            torch._assert_async(
                ((ids >= 0) & (ids < n)).all(), f"ids are outside the {n} rows of the table {name!r}"
            )

    def rows(self, name: str) -> tuple[nn.Module, range]:
        """The module that has a table, and which of its rows are the table's."""
        if name not in self.tables:
            raise SparseError(f"there is no table {name!r}: the collection has {', '.join(self.tables)}.")
        n, width = self.tables[name]
        return self.of_width[str(width)], range(self.first[name], self.first[name] + n)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}: {n} x {d}" for name, (n, d) in self.tables.items())


class ShardedEmbeddingBag(ShardedEmbedding):
    """One table of bags: `forward(ids)` of ids [bags, n], or `forward(ids, offsets)`."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mesh: DeviceMesh | None = None,
        mode: str = "mean",
        **options: Any,
    ) -> None:
        if mode not in ("sum", "mean"):
            raise SparseError(f'a ShardedEmbeddingBag has the modes "sum" and "mean", not {mode!r}.')
        super().__init__(num_embeddings, embedding_dim, mesh, **options)
        self.mode = mode

    def forward(self, ids: Tensor, offsets: Tensor | None = None) -> Tensor:
        flat, ptr = bags_of(ids, offsets)
        rows, each = self.looked_up(flat)
        return F.embedding_bag(each, rows, ptr[:-1], mode=self.mode)
