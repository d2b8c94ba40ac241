"""Patterns from nothing: random, full, blocks, bands, and places that a pattern does not have."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradmend.sparse.errors import PatternError
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.places import check_size


def random(
    size: Sequence[int],
    density: float | None = None,
    nnz: int | None = None,
    generator: torch.Generator | None = None,
) -> Pattern:
    """Uniform among all patterns with that many entries."""
    shape = tuple(size)
    check_size("a random pattern", shape)
    total = math.prod(shape)
    if (density is None) == (nnz is None):
        raise PatternError("a random pattern takes either density= or nnz=.")
    count = nnz if nnz is not None else round(total * float(density or 0))
    if not 0 <= count <= total:
        raise PatternError(f"{count} entries don't fit into the {total} places of {shape}.")
    return Pattern.from_keys(distinct(total, count, generator), shape)


def distinct(total: int, count: int, generator: torch.Generator | None = None) -> Tensor:
    """`count` different numbers below `total`, ascending, without writing out the others."""
    if count * 3 > total:
        return torch.randperm(total, generator=generator)[:count].sort().values
    found = torch.empty(0, dtype=torch.int64)
    while found.shape[0] < count:
        more = torch.randint(total, (count + count // 8 + 16,), generator=generator)
        found = torch.unique(torch.cat([found, more]))
    if found.shape[0] > count:
        chosen = torch.randperm(found.shape[0], generator=generator)[:count]
        found = found[chosen.sort().values]
    return found


def missing(pattern: Pattern, count: int, generator: torch.Generator | None = None) -> Pattern:
    """`count` places the pattern does not have (negative samples): exact, and its complement is never built."""
    free = pattern.numel - pattern.nnz
    if not 0 <= count <= free:
        raise PatternError(f"{count} places were asked for, and {free} are free.")
    rank = distinct(free, count, generator).to(pattern.device)
    keys = pattern.keys()
    # Before the i-th entry lie keys[i] - i free places: the free place number `rank` is that many entries further.
    before = keys - torch.arange(pattern.nnz, device=pattern.device)
    return Pattern.from_keys(rank + torch.searchsorted(before, rank, right=True), pattern.size)


def full(size: Sequence[int]) -> Pattern:
    return Pattern.from_keys(torch.arange(math.prod(size)), tuple(size))


def blocks(places: Sequence[Sequence[int]] | Tensor, block: tuple[int, int], size: Sequence[int]) -> Pattern:
    """Whole blocks at block places: blocks([[0, 1], [1, 0]], (2, 2), (4, 4)) has 8 entries."""
    from gradmend.sparse.interop.compressed import block_pattern

    index = torch.as_tensor(places, dtype=torch.int64)
    if any(n % b for n, b in zip(size, block, strict=True)):
        raise PatternError(f"blocks of {block} don't tile the size {tuple(size)}.")
    return block_pattern(index, block, size).canonical()


def band(n: int, lower: int = 1, upper: int = 1) -> Pattern:
    """A square pattern with diagonals from -lower to upper."""
    row = torch.arange(n)[:, None]
    col = row + torch.arange(-lower, upper + 1)
    inside = (col >= 0) & (col < n)
    return Pattern.sorted(torch.stack([row.expand_as(col)[inside], col[inside]]), (n, n))
