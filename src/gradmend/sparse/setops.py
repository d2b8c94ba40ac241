"""Patterns as sets of places: union, intersection, difference, and where the entries went."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from gradmend.sparse.errors import PatternError
from gradmend.sparse.kernels import merging
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.places import aside

Merged = tuple[Pattern, Tensor, Tensor]


def union(p: Pattern, q: Pattern) -> Merged:
    """(pattern, slot of each entry of p, slot of each entry of q)."""
    return _kept("union", p, q, _union)


def intersection(p: Pattern, q: Pattern) -> Merged:
    """(pattern, entries of p in it, entries of q in it)."""
    return _kept("intersection", p, q, _intersection)


def _kept(name: str, p: Pattern, q: Pattern, work_out: Callable[[Pattern, Pattern], Merged]) -> Merged:
    """Kept with p for the last q: training combines the same two again and again."""
    _same_size(p, q)
    if torch.compiler.is_compiling():
        return work_out(p, q)
    found = p._merged.get(name)
    if found is None or found[0]() is not q:
        with aside():
            found = p._merged[name] = weakref.ref(q), work_out(p, q)
    made: Merged = found[1]
    return made


def _union(p: Pattern, q: Pattern) -> Merged:
    index, left, right = merging.union(p._keys(), q._keys(), p._indices, q._indices)
    return Pattern._trusted(index, p.size), left, right


def _intersection(p: Pattern, q: Pattern) -> Merged:
    left, right = merging.intersection(p._keys(), q._keys())
    return Pattern._trusted(p._indices.index_select(1, left), p.size), left, right


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
