"""Edits that bring back what was there before: a numerical probe that is undone harms nothing that is made after it."""

from __future__ import annotations

import torch

from gradmend.capture.edits.edit import Edit, changed_places
from gradmend.capture.ledger.entries import next_number
from gradmend.capture.memory.layouts import Layout, physical


def takes_back(edits: list[Edit], edit: Edit, region: torch.Tensor) -> bool:
    """An edit that brings back what was there before an earlier one ends that, and all later ones in its place.

    True where nothing is left of the edit itself.
    """
    if edit.region.dtype != region.dtype:
        return False
    for earlier in edits:
        was = earlier.region
        if earlier.old is None or earlier.until is not None or was.dtype != region.dtype:
            continue
        if not _covers(edit.region, was):
            continue
        now = torch.as_strided(
            torch._C.TensorBase.detach(physical(region)), was.shape, was.strides, was.offset
        )
        if changed_places(physical(earlier.old), now) is not None:
            continue
        end = next_number()
        for other in edits:
            if other.serial >= earlier.serial and other.until is None and _covers(was, other.region):
                other.until = end
        if was == edit.region:
            return True
        edit.changed &= ~_places(edit.region, was)
        if not edit.changed.any():
            return True
    return False


def _places(outer: Layout, inner: Layout) -> torch.Tensor:
    """Which elements of the one lie in the other."""
    flat = torch.zeros(max(outer.hi, inner.hi) // outer.dtype.itemsize, dtype=torch.bool)
    torch.as_strided(flat, inner.shape, inner.strides, inner.offset)[...] = True
    return torch.as_strided(flat, outer.shape, outer.strides, outer.offset).clone()


def _covers(outer: Layout, inner: Layout) -> bool:
    if outer == inner:
        return True
    if outer.dtype.itemsize != inner.dtype.itemsize or inner.lo < outer.lo or inner.hi > outer.hi:
        return False
    return bool(_places(inner, outer).all())
