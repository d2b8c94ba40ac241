"""What a live edit is, once live_edits.py has seen one: which elements of which node's output changed outside autograd.

One that brings back what was there before ends the earlier ones: a numerical probe that is undone harms nothing that is
made after it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gradmend.capture.ledger.entries import Write, next_number
from gradmend.capture.memory.layouts import Layout, has_values, physical
from gradmend.capture.unseen import without_grad

serials = itertools.count(1)

Key = tuple[int, str, int]  # sequence number and name of a node, and which of its outputs


def changed_places(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor | None:
    """Which elements differ; None where none does."""
    if not has_values(old):
        return None  # a dry run: it says that this is not looked at
    return without_grad(_differing, old, new)


def _differing(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor | None:
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


def takes_back(edits: list[Edit], edit: Edit, region: torch.Tensor) -> list[Edit]:
    """Ends earlier edits, element by element, where `edit` brings back what was there before them.

    Returns the parts that were split off. The edit itself keeps the elements that it did not bring back.
    """
    split: list[Edit] = []
    for at, earlier in enumerate(list(edits)):
        back = _brought_back(earlier, edit, region)
        if back is None:
            continue
        end = next_number()
        standing = [other for other in edits[at:] if other.until is None]
        parts = [_end(other, edit.region, back, end) for other in standing]
        split += [part for part in parts if part is not None]
        edit.changed = edit.changed & ~back
    edits += split
    return split


def _brought_back(earlier: Edit, edit: Edit, region: torch.Tensor) -> torch.Tensor | None:
    """Which elements of the edit hold again what they held before an earlier one; None where none does."""
    was = earlier.region
    if earlier.old is None or earlier.until is not None or was.dtype != edit.region.dtype:
        return None
    if was.lo >= edit.region.hi or edit.region.lo >= was.hi:
        return None
    there = _seen_from(was, edit.region, earlier.changed)
    old = _seen_from(was, edit.region, physical(earlier.old).cpu())
    differs = changed_places(old, physical(torch._C.TensorBase.detach(region)).cpu())
    back = there if differs is None else there & ~differs
    return back if back.any() else None


def _end(edit: Edit, where: Layout, back: torch.Tensor, end: int) -> Edit | None:
    """From node `end` on, these elements don't show the edit. Returns the part of it that ends there, if others go on."""
    ended = edit.changed & _seen_from(where, edit.region, back)
    if not ended.any():
        return None
    if bool((ended == edit.changed).all()):
        edit.until = end
        return None
    edit.changed = edit.changed & ~ended
    return replace(edit, changed=ended, until=end)


def _seen_from(one: Layout, other: Layout, values: torch.Tensor) -> torch.Tensor:
    """Values that lie as the one layout, as they show through the other: zeros where the two don't meet."""
    if one == other:
        return values
    if one.dtype.itemsize != other.dtype.itemsize:
        return torch.zeros(other.shape, dtype=values.dtype)
    whole, part = lying_so(one, other, values.dtype)
    whole.copy_(values)
    return part
