"""Patterns as sets of places: union, intersection, difference, and where the entries went."""

from __future__ import annotations

import torch
from torch import Tensor

from gradmend.sparse.errors import PatternError
from gradmend.sparse.pattern import Pattern


def union(p: Pattern, q: Pattern) -> tuple[Pattern, Tensor, Tensor]:
    """(pattern, slot of each entry of p, slot of each entry of q)."""
    _same_size(p, q)
    left, right = p._keys(), q._keys()
    keys = torch.unique(torch.cat([left, right]))
    return Pattern._from_keys(keys, p.size), torch.searchsorted(keys, left), torch.searchsorted(keys, right)


def intersection(p: Pattern, q: Pattern) -> tuple[Pattern, Tensor, Tensor]:
    """(pattern, entries of p in it, entries of q in it)."""
    _same_size(p, q)
    in_q, there = find(q, p._keys())
    kept = in_q.nonzero().squeeze(1)
    return Pattern._trusted(p._indices[:, kept], p.size), kept, there[kept]


def difference(p: Pattern, q: Pattern) -> tuple[Pattern, Tensor]:
    """(places of p that are not in q, entries of p in it)."""
    _same_size(p, q)
    kept = (~find(q, p._keys())[0]).nonzero().squeeze(1)
    return Pattern._trusted(p._indices[:, kept], p.size), kept


def find(pattern: Pattern, keys: Tensor) -> tuple[Tensor, Tensor]:
    """For each linear number: is it a place of the pattern, and which entry (if not, any entry)."""
    if pattern.nnz == 0:
        return torch.zeros_like(keys, dtype=torch.bool), torch.zeros_like(keys)
    own = pattern._keys()
    at = torch.searchsorted(own, keys).clamp_(max=pattern.nnz - 1)
    return own[at] == keys, at


def _same_size(p: Pattern, q: Pattern) -> None:
    if p.size != q.size:
        raise PatternError(
            f"patterns of the sizes {p.size} and {q.size} can't be combined: they must be equal."
        )
    if p.device != q.device:
        raise PatternError(f"one pattern is on {p.device}, the other on {q.device}: move one with .to().")
