"""What a live edit is, once live_edits.py has seen one: which elements of which node's output changed outside autograd."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from gradmend.capture.ledger.entries import Write, next_number
from gradmend.capture.memory.layouts import Layout, has_values

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


class Edit:
    """One change of an output of a node, outside autograd."""

    __slots__ = (
        "__weakref__",
        "changed",
        "key",
        "number",
        "old",
        "owner",
        "region",
        "scope",
        "serial",
        "shift",
        "still",
        "unsure",
        "until",
        "void",
        "written",
    )

    def __init__(
        self, key: Key, owner: Layout, region: Layout, changed: torch.Tensor, scope: Any, written: Write
    ) -> None:
        self.key = key
        self.owner = owner  # how the node's output lies in its storage
        self.region = region  # what was written
        self.changed = changed  # which elements of it got another value
        self.scope = scope
        self.written = written
        self.number = next_number()  # nodes from here on are made after the edit
        self.serial = next(serials)
        self.void = False
        self.still = False  # a constant was added: it harms no gradient, and may be taken back
        self.old: torch.Tensor | None = None  # what the region held before
        self.until: int | None = None  # nodes from here on are made after it was undone
        self.shift: tuple[int, ...] | None = None  # of the tensor that was added, where it was an addition
        self.unsure = False  # nobody saw when it was written, only that it was

    def shows_in(self, number: int) -> bool:
        """Whether a node of this number was made while the edit stood."""
        return number >= self.number and (self.until is None or number < self.until)

    def mask(self) -> torch.Tensor:
        """The edited elements, in the coordinates of the node's output."""
        owner, region = self.owner, self.region
        if owner == region:
            return self.changed
        if owner.dtype.itemsize != region.dtype.itemsize:
            return torch.ones(owner.shape, dtype=torch.bool)
        item = owner.dtype.itemsize
        whole = torch.zeros(max(owner.hi, region.hi) // item, dtype=torch.bool)
        torch.as_strided(whole, region.shape, region.strides, region.offset)[self.changed] = True
        return torch.as_strided(whole, owner.shape, owner.strides, owner.offset)
