"""What a live edit is, once live_edits.py has seen one: which elements of which node's output changed outside autograd.

One that brings back what was there before ends the earlier ones: a numerical probe that is undone harms nothing that is
made after it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch

from gradmend.capture.ledger.entries import Write, next_number
from gradmend.capture.memory.layouts import Layout, has_values, physical

serials = itertools.count(1)

Key = tuple[int, str, int]  # sequence number and name of a node, and which of its outputs


def changed_places(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor | None:
    """Which elements differ; None where none does."""
    if not has_values(old):
        return None  # a dry run: it says that this is not looked at
    with torch.no_grad():
        if old.shape != new.shape:
            return torch.ones(new.shape, dtype=torch.bool)
        differs = old != new
        if old.is_floating_point():
            differs &= ~(old.isnan() & new.isnan())
        return differs.cpu() if differs.any() else None


@dataclass(slots=True, weakref_slot=True, eq=False)
class Edit:
    """One change of an output of a node, outside autograd."""

    key: Key
    owner: Layout  # how the node's output lies in its storage
    region: Layout  # what was written
    changed: torch.Tensor  # which elements of it got another value
    scope: Any
    written: Write
    old: torch.Tensor | None = None  # what the region held before
    shift: tuple[int, ...] | None = None  # of the tensor that was added, where it was an addition
    still: bool = False  # a constant was added: it harms no gradient, and may be taken back
    unsure: bool = False  # nobody saw when it was written, only that it was
    number: int = field(default_factory=next_number)  # nodes from here on are made after the edit
    until: int | None = None  # nodes from here on are made after it was undone
    serial: int = field(default_factory=lambda: next(serials))
    void: bool = False

    def shows_in(self, number: int) -> bool:
        """Whether a node of this number was made while the edit stood."""
        return number >= self.number and (self.until is None or number < self.until)

    def mask(self) -> torch.Tensor:
        """The edited elements, in the coordinates of the node's output."""
        if self.owner == self.region:
            return self.changed
        if self.owner.dtype.itemsize != self.region.dtype.itemsize:
            return torch.ones(self.owner.shape, dtype=torch.bool)
        whole, part = lying_so(self.owner, self.region, torch.bool)
        part[self.changed] = True
        return whole


def lying_so(one: Layout, other: Layout, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors of zeros over one memory, as these two layouts lie: what is written to one shows in the other."""
    memory = torch.zeros(max(one.hi, other.hi) // one.dtype.itemsize, dtype=dtype)
    return (
        torch.as_strided(memory, one.shape, one.strides, one.offset),
        torch.as_strided(memory, other.shape, other.strides, other.offset),
    )


def takes_back(edits: list[Edit], edit: Edit, region: torch.Tensor) -> bool:
    """An edit that brings back what was there before an earlier one ends that, and all later ones in its place.

    True where nothing is left of the edit itself.
    """
    for at, earlier in enumerate(edits):
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
        for other in edits[at:]:
            if other.until is None and _covers(was, other.region):
                other.until = end
        if was == edit.region:
            return True
        edit.changed &= ~_places(edit.region, was)
        if not edit.changed.any():
            return True
    return False


def _places(outer: Layout, inner: Layout) -> torch.Tensor:
    """Which elements of the one lie in the other."""
    places, there = lying_so(outer, inner, torch.bool)
    there[...] = True
    return places


def _covers(outer: Layout, inner: Layout) -> bool:
    if outer == inner:
        return True
    if outer.dtype.itemsize != inner.dtype.itemsize or inner.lo < outer.lo or inner.hi > outer.hi:
        return False
    return bool(_places(inner, outer).all())
