"""What products and reductions need to know of a pattern, worked out at first use and kept with it.

Inside torch.compile nothing is kept: what is built there belongs to the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from gradmend.sparse.errors import PatternError
from gradmend.sparse.places import Size, aside, check_size, is_wide, linear, order_of, pointers
from gradmend.sparse.segments import Segments, group

if TYPE_CHECKING:
    from gradmend.sparse.pattern import Pattern

T = TypeVar("T")


class Local(NamedTuple):
    """A pattern reduced to its occupied rows and columns, so that nothing is as long as the rows."""

    row_ids: Tensor | None
    col_ids: Tensor | None
    pattern: Pattern


class Views:
    """The other half of Pattern: everything that follows from its sorted indices and its size."""

    _indices: Tensor
    _size: Size

    if TYPE_CHECKING:
        canonical: Callable[[], Pattern]
        _trusted: Callable[[Tensor, Any], Pattern]

    def _no_views(self) -> None:
        self._kept_keys: Tensor | None = None
        self._kept_ptr: Tensor | None = None
        self._kept_axes: tuple[Tensor, ...] | None = None
        self._kept_transposed: tuple[Tensor, Tensor, Tensor] | None = None
        self._kept_flipped: Pattern | None = None
        self._kept_blocks: Pattern | None = None
        self._kept_local: Local | None = None
        self._kept_repeated: tuple[int, Pattern] | None = None
        self._kept_segments: dict[tuple[int, ...], Segments] = {}

    def _keep(self, name: str, build: Callable[[], T]) -> T:
        if torch.compiler.is_compiling():
            return build()
        with aside():
            made = build()
        setattr(self, name, made)
        return made

    def _keys(self) -> Tensor:
        """[nnz], the linear number of each place, ascending."""
        if self._kept_keys is not None:
            return self._kept_keys
        return self._keep("_kept_keys", lambda: linear(self._indices, self._size))

    @property
    def _ptr(self) -> Tensor:
        """[rows + 1]; as long as the rows, so hypersparse patterns go through `local()` first."""
        if self._kept_ptr is not None:
            return self._kept_ptr
        return self._keep("_kept_ptr", lambda: pointers(self._indices[0], self._size[0]))

    @property
    def _axes(self) -> tuple[Tensor, ...]:
        """A vector of places per dimension, kept: taking a row of a tensor costs a fifth of a small product."""
        if self._kept_axes is not None:
            return self._kept_axes
        return self._keep("_kept_axes", lambda: self._indices.unbind(0))

    @property
    def _row(self) -> Tensor:
        return self._axes[0]

    @property
    def _col(self) -> Tensor:
        return self._axes[1]

    def _transposed(self) -> tuple[Tensor, Tensor, Tensor]:
        """(ptr, row, perm) by columns: entry `perm[i]` of this pattern is the i-th of the transposed one."""
        if self._kept_transposed is not None:
            return self._kept_transposed
        return self._keep("_kept_transposed", self._transpose)

    def _transpose(self) -> tuple[Tensor, Tensor, Tensor]:
        row, col = self._indices
        perm = order_of(col * self._size[0] + row)
        return pointers(col[perm], self._size[1]), row[perm], perm

    def flipped(self) -> Pattern:
        """The transposed pattern; entry i of it is entry `transposed()[2][i]` of this one."""
        if self._kept_flipped is not None:
            return self._kept_flipped
        return self._keep("_kept_flipped", self._flip)

    def _flip(self) -> Pattern:
        ptr, row, perm = self._transposed()
        made = self._trusted(torch.stack([self._indices[1][perm], row]), self._size[::-1])
        places = torch.arange(perm.shape[0], device=perm.device)
        inverse = torch.zeros_like(perm).scatter(0, perm, places)
        # Tensors are shared, objects are not: a cycle would outlive its last user.
        made._kept_ptr, made._kept_transposed = ptr, (self._ptr, self._indices[1], inverse)
        return made

    def _local(self) -> Local:
        """Itself when most rows and columns are occupied, else a small pattern over those that are."""
        if self._kept_local is not None:
            return self._kept_local
        wide = [is_wide(n, self._indices.shape[1]) for n in self._size]
        if not any(wide) or torch.compiler.is_compiling():
            # Not kept: a pattern that refers to itself would live until the garbage collector's next round.
            return Local(None, None, self)  # type: ignore[arg-type]
        return self._keep("_kept_local", lambda: self._shrink(wide))

    def _shrink(self, wide: list[bool]) -> Local:
        ids: list[Tensor | None] = []
        index, size = [], []
        for axis, far, n in zip(self._indices, wide, self._size, strict=True):
            unique, inverse = torch.unique(axis, return_inverse=True) if far else (None, axis)
            ids.append(unique)
            index.append(inverse)
            size.append(n if unique is None else unique.shape[0])
        return Local(ids[0], ids[1], self._trusted(torch.stack(index), size))

    def prepare(self) -> Pattern:
        """Builds what products need now instead of at first use (before forking workers or compiling)."""
        if len(self._size) == 2:
            local = self.canonical()._local().pattern
            _ = local._ptr, local._axes
            local._transposed()
        return self  # type: ignore[return-value]

    def _segments(self, keep: tuple[int, ...]) -> Segments:
        """Groups of entries that agree in the dimensions `keep`."""
        found = self._kept_segments.get(keep)
        if found is not None:
            return found
        if torch.compiler.is_compiling():
            return group(self, keep)  # type: ignore[arg-type]
        with aside():
            self._kept_segments[keep] = group(self, keep)  # type: ignore[arg-type]
        return self._kept_segments[keep]

    def _diagonal_blocks(self) -> Pattern:
        """[*batch, r, c] as one matrix, its items blocks down the diagonal; entries keep their order."""
        if self._kept_blocks is not None:
            return self._kept_blocks
        return self._keep("_kept_blocks", self._as_blocks)

    def _as_blocks(self) -> Pattern:
        lead, (r, c) = self._size[:-2], self._size[-2:]
        count = math.prod(lead)
        size = (count * r, count * c)
        check_size("a batch on the diagonal", size)
        at = linear(self._indices[:-2], lead) if lead else torch.zeros_like(self._indices[0])
        return self._trusted(torch.stack([at * r + self._indices[-2], at * c + self._indices[-1]]), size)

    def repeat(self, count: int) -> Pattern:
        """`count` copies down the diagonal: one product for a whole batch."""
        if count < 1:
            raise PatternError(f"a pattern is repeated at least once, not {count} times.")
        if count == 1:
            return self  # type: ignore[return-value]
        if self._kept_repeated is not None and self._kept_repeated[0] == count:
            return self._kept_repeated[1]
        return self._keep("_kept_repeated", lambda: (count, self._repeat(count)))[1]

    def _repeat(self, count: int) -> Pattern:
        device = self._indices.device
        step = torch.arange(count, device=device).view(1, count, 1)
        scale = torch.tensor(self._size, device=device).view(-1, 1, 1)
        size = tuple([n * count for n in self._size])
        check_size("a batch on the diagonal", size)
        return self._trusted((self._indices[:, None] + step * scale).flatten(1), size)
