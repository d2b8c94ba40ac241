"""From CSR, CSC and BSR arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.errors import PatternError
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.places import home
from gradmend.sparse.tensor import SparseTensor


def from_csr(crow: Any, col: Any, values: Tensor, size: Sequence[int] | None = None) -> SparseTensor:
    crow, col = _index(crow, values), _index(col, values)
    _check(crow, col, "row")
    rows = crow.shape[0] - 1
    size = (rows, _width(col)) if size is None else tuple(size)[:2]
    _fits(size, 0, rows, "row")
    row = torch.repeat_interleave(torch.arange(rows, device=col.device), crow.diff())
    return SparseTensor(Pattern(torch.stack([row, col]), size), values)


def from_csc(ccol: Any, row: Any, values: Tensor, size: Sequence[int] | None = None) -> SparseTensor:
    ccol, row = _index(ccol, values), _index(row, values)
    _check(ccol, row, "column")
    cols = ccol.shape[0] - 1
    size = (_width(row), cols) if size is None else tuple(size)[:2]
    _fits(size, 1, cols, "column")
    col = torch.repeat_interleave(torch.arange(cols, device=row.device), ccol.diff())
    return SparseTensor(Pattern(torch.stack([row, col]), size), values)


def from_bsr(crow: Any, col: Any, values: Tensor, size: Sequence[int] | None = None) -> SparseTensor:
    """Blocks: values [blocks, height, width]; every number of a block becomes an entry."""
    crow, col = _index(crow, values), _index(col, values)
    if values.dim() < 3:
        raise PatternError(
            f"blocks are (blocks, height, width); values have the shape {tuple(values.shape)}."
        )
    _check(crow, col, "row")
    row = torch.repeat_interleave(torch.arange(crow.shape[0] - 1, device=col.device), crow.diff())
    if size is not None:
        _fits(tuple(size), 0, (crow.shape[0] - 1) * values.shape[1], "row")
    return from_blocks(torch.stack([row, col]), values, size, crow.shape[0] - 1)


def from_blocks(
    places: Tensor, values: Tensor, size: Sequence[int] | None, block_rows: int | None = None
) -> SparseTensor:
    h, w = values.shape[1:3]
    pattern = block_pattern(places, (h, w), size, block_rows)
    return SparseTensor(pattern, values.reshape(-1, *values.shape[3:]))


def block_pattern(
    places: Tensor, block: tuple[int, int], size: Sequence[int] | None = None, block_rows: int | None = None
) -> Pattern:
    """Entries of whole blocks, in the order block after block, row-major within each."""
    h, w = block
    inner = torch.arange(h * w, device=places.device)
    row = (places[0][:, None] * h + inner // w).flatten()
    col = (places[1][:, None] * w + inner % w).flatten()
    if size is None:
        high = block_rows if block_rows is not None else _width(places[0])
        size = (high * h, _width(places[1]) * w)
    return Pattern(torch.stack([row, col]), tuple(size)[:2])


def _fits(size: Sequence[int], dim: int, n: int, what: str) -> None:
    if len(size) < 2 or size[dim] != n:
        raise PatternError(
            f"the {what} pointers are for {n} {what}s, and the size {tuple(size)} has another number."
        )


def _index(x: Any, values: Tensor) -> Tensor:
    if not isinstance(values, Tensor):
        raise PatternError(f"values are a tensor, not {type(values).__name__}: torch.tensor(values).")
    found = torch.as_tensor(x, device=home() if values.is_meta else values.device)
    if found.is_floating_point() or found.is_complex() or found.dim() != 1:
        raise PatternError(
            f"indices are one vector of whole numbers, not {found.dtype} {tuple(found.shape)}."
        )
    return found.to(torch.int64)


def _width(index: Tensor) -> int:
    return int(index.max()) + 1 if index.numel() else 0


def _check(ptr: Tensor, index: Tensor, what: str) -> None:
    steps = ptr.diff()
    if ptr.dim() != 1 or ptr.numel() == 0 or int(ptr[0]) != 0 or bool((steps < 0).any()):
        raise PatternError(f"the {what} pointers must be one vector that starts at 0 and never falls.")
    if int(ptr[-1]) != index.shape[0]:
        raise PatternError(
            f"the {what} pointers end at {int(ptr[-1])}, and there are {index.shape[0]} indices."
        )
