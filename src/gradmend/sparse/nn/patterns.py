"""Patterns of weights: random or by magnitude; single entries, whole blocks, or n of every m in a row."""

from __future__ import annotations

import torch
from torch import Tensor

from gradmend.sparse.errors import PatternError
from gradmend.sparse.pattern import Pattern

Block = tuple[int, int]


def _fits(size: tuple[int, int], density: float, block: Block | None, n_of_m: tuple[int, int] | None) -> None:
    if not 0 <= density <= 1:
        raise PatternError(f"a density is from 0 to 1, not {density}.")
    if block is not None and n_of_m is not None:
        raise PatternError("a pattern is of blocks or n of m, not both.")
    if block is not None and (min(block) < 1 or any(n % b for n, b in zip(size, block, strict=True))):
        raise PatternError(f"blocks of {block} don't tile a weight of {size}.")
    if n_of_m is not None:
        n, m = n_of_m
        if not 0 <= n <= m or m < 1 or size[1] % m:
            raise PatternError(
                f"{n} of every {m} does not fit rows of {size[1]}: m must divide them, and hold n."
            )


def random(
    size: tuple[int, int],
    density: float,
    block: Block | None = None,
    n_of_m: tuple[int, int] | None = None,
    generator: torch.Generator | None = None,
) -> Pattern:
    """(out, in); of blocks, or of m, those that stay are drawn."""
    _fits(size, density, block, n_of_m)
    if n_of_m is not None:
        device = None if generator is None else generator.device
        return strongest(torch.rand(size, generator=generator, device=device), density, None, n_of_m)
    if block is None:
        return Pattern.random(size, density=density, generator=generator)
    tiles = Pattern.random((size[0] // block[0], size[1] // block[1]), density=density, generator=generator)
    return Pattern.blocks(tiles.indices(), block, size)


def strongest(
    weight: Tensor, density: float, block: Block | None = None, n_of_m: tuple[int, int] | None = None
) -> Pattern:
    """The largest of a dense weight [out, in], by magnitude; of a block, by its norm."""
    if weight.dim() != 2:
        raise PatternError(f"a weight is [out, in], not {tuple(weight.shape)}.")
    size = (weight.shape[0], weight.shape[1])
    _fits(size, density, block, n_of_m)
    score = weight.detach().abs()
    if n_of_m is not None:
        n, m = n_of_m
        at = score.unflatten(1, (-1, m)).topk(n, 2).indices
        col = (at + torch.arange(0, size[1], m, device=at.device)[:, None]).flatten(1)
        row = torch.arange(size[0], device=at.device)[:, None].expand_as(col)
        return Pattern(torch.stack([row.flatten(), col.flatten()]), size).canonical()
    if block is not None:
        h, w = block
        score = score.unflatten(1, (-1, w)).unflatten(0, (-1, h)).square().sum((1, 3))
    keys = score.flatten().topk(round(score.numel() * density)).indices
    chosen = Pattern.from_keys(keys, tuple(score.shape)).canonical()
    return chosen if block is None else Pattern.blocks(chosen.indices(), block, size)


def fan_in(pattern: Pattern) -> Tensor:
    """[nnz]: how many entries the row of each entry has."""
    count = torch.zeros(pattern.size[0], dtype=torch.int64, device=pattern.device)
    count.index_add_(0, pattern.row, torch.ones_like(pattern.row))
    return count.index_select(0, pattern.row)


def uniform(pattern: Pattern, values: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """nn.Linear's bound, 1 / sqrt(inputs), with the inputs that each row really has; in place."""
    if values.is_meta:
        return values
    bound = fan_in(pattern).to(values.device, values.dtype).rsqrt_()
    with torch.no_grad():
        return values.uniform_(-1, 1, generator=generator).mul_(bound.view(-1, *[1] * (values.dim() - 1)))


def mask_of(layer: torch.nn.Module, name: str = "weight") -> Tensor | None:
    """What torch.nn.utils.prune or torch.ao.pruning has masked, if one of them has."""
    found = getattr(layer, f"{name}_mask", None)
    if isinstance(found, Tensor):
        return found != 0
    chain = getattr(getattr(layer, "parametrizations", None), name, ())
    for step in chain:
        mask = getattr(step, "mask", None)
        if isinstance(mask, Tensor):
            return mask != 0
    return None
