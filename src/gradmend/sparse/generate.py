"""Patterns from nothing: random, full, blocks, bands, and places that a pattern does not have."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from gradmend.sparse.errors import PatternError
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.places import check_size, home


def random(
    size: Sequence[int],
    density: float | None = None,
    nnz: int | None = None,
    generator: torch.Generator | None = None,
) -> Pattern:
    """Uniform among all patterns with that many entries."""
    shape = whole_size("a random pattern", size)
    total = math.prod(shape)
    if (density is None) == (nnz is None):
        raise PatternError("a random pattern takes either density= or nnz=.")
    if density is not None and not 0 <= density <= 1:
        raise PatternError(f"a density is from 0 to 1, not {density}: {total} places are there.")
    count = nnz if nnz is not None else round(total * float(density or 0))
    if not 0 <= count <= total:
        raise PatternError(f"{count} entries don't fit into the {total} places of {shape}.")
    return Pattern._from_keys(distinct(total, count, generator), shape)


def distinct(total: int, count: int, generator: torch.Generator | None = None) -> Tensor:
    """`count` different numbers below `total`, ascending, without writing out the others."""
    where = home() if generator is None else generator.device
    if count * 3 > total:
        return torch.randperm(total, generator=generator, device=where)[:count].sort().values
    found = torch.empty(0, dtype=torch.int64, device=where)
    while found.shape[0] < count:
        more = torch.randint(total, (count + count // 8 + 16,), generator=generator, device=where)
        found = torch.unique(torch.cat([found, more]))
    if found.shape[0] > count:
        chosen = torch.randperm(found.shape[0], generator=generator, device=where)[:count]
        found = found[chosen.sort().values]
    return found


def missing(pattern: Pattern, count: int, generator: torch.Generator | None = None) -> Pattern:
    """`count` places the pattern does not have (negative samples): exact, and its complement is never built."""
    free = pattern.numel - pattern.nnz
    if not 0 <= count <= free:
        raise PatternError(f"{count} places were asked for, and {free} are free.")
    rank = distinct(free, count, generator).to(pattern.device)
    keys = pattern._keys()
    # Before the i-th entry lie keys[i] - i free places: the free place number `rank` is that many entries further.
    before = keys - torch.arange(pattern.nnz, device=pattern.device)
    return Pattern._from_keys(rank + torch.searchsorted(before, rank, right=True), pattern.size)


def whole_size(name: str, size: Sequence[int]) -> tuple[int, ...]:
    """A size that a pattern can have."""
    try:
        shape = tuple(operator.index(n) for n in size)
    except TypeError as error:
        raise PatternError(f"{name} takes a size of whole numbers, not {size!r}.") from error
    if not shape or any(n < 0 for n in shape):
        raise PatternError(f"{name} takes at least one dimension, none of them negative, not {shape}.")
    check_size(name, shape)
    return shape


def full(size: Sequence[int]) -> Pattern:
    size = whole_size("a full pattern", size)
    return Pattern._from_keys(torch.arange(math.prod(size), device=home()), tuple(size))


def blocks(places: Sequence[Sequence[int]] | Tensor, block: tuple[int, int], size: Sequence[int]) -> Pattern:
    """Whole blocks at block places: blocks([[0, 1], [1, 0]], (2, 2), (4, 4)) has 8 entries."""
    from gradmend.sparse.interop.compressed import block_pattern

    index = torch.as_tensor(places, dtype=torch.int64, device=home())
    if any(n % b for n, b in zip(size, block, strict=True)):
        raise PatternError(f"blocks of {block} don't tile the size {tuple(size)}.")
    return block_pattern(index, block, size).canonical()


def band(n: int, lower: int = 1, upper: int = 1) -> Pattern:
    """A square pattern with diagonals from -lower to upper."""
    row = torch.arange(n, device=home())[:, None]
    col = row + torch.arange(-lower, upper + 1, device=home())
    inside = (col >= 0) & (col < n)
    return Pattern._trusted(torch.stack([row.expand_as(col)[inside], col[inside]]), (n, n))
