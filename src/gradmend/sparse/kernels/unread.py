"""Gradients of rows on a device: all that the host must know of them comes in one read, for all parameters of a step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gradmend.sparse.kernels.grouping import Groups
from gradmend.sparse.kernels.rows import Touched, fitting


class Facts(NamedTuple):
    low: int
    high: int
    finite: int
    different: int
    fresh: int


class Unread(NamedTuple):
    """A gradient whose numbers the host has not seen yet."""

    facts: Tensor  # [5], as in Facts
    rows: Tensor  # [n], ascending; the first `different` of them count
    values: Tensor  # [n, ...], the sums that belong to `rows`

    def touched(self, facts: Facts) -> Touched:
        n = facts.different
        each = torch.arange(n + 1, device=self.rows.device)
        return Touched(Groups(each, self.rows[:n], each[:n]), self.values[:n], facts.fresh)


def of_rows(param: Tensor, grad: Tensor, slots: Tensor | None) -> Unread:
    """`slots` [rows of the table]: 0 where a row has no state yet; None if no row has, or all have."""
    index, values = fitting(param, grad)
    n = index.shape[0]
    if n == 0:
        return Unread(torch.tensor([0, 0, 1, 0, 0], device=index.device), index, values)
    low, high = index.aminmax()
    finite = values.isfinite().all()
    if grad.is_coalesced():
        rows, different = index, torch.full_like(low, n)
    else:
        rows, order = torch.sort(index, stable=True)
        first = torch.ones_like(rows, dtype=torch.bool)
        torch.ne(rows[1:], rows[:-1], out=first[1:])
        seg = first.cumsum(0) - 1
        values = torch.zeros_like(values).index_add_(0, seg, values.index_select(0, order))
        rows, different = torch.zeros_like(rows).scatter_(0, seg, rows), seg[-1] + 1
    fresh = different
    if slots is not None:
        # Bad indices are an error later: here they must not stop the device.
        without = slots.index_select(0, rows.clamp(0, slots.shape[0] - 1)) == 0
        fresh = (without & (torch.arange(n, device=rows.device) < different)).sum()
    facts = torch.stack([low, high, finite.to(low.dtype), different, fresh.to(low.dtype)])
    return Unread(facts, rows, values)


def of_all(grad: Tensor) -> Tensor:
    """The facts of a dense gradient."""
    zero = torch.zeros((), dtype=torch.int64, device=grad.device)
    return torch.stack([zero, zero, grad.isfinite().all().to(torch.int64), zero, zero])


def read(facts: list[Tensor]) -> list[Facts]:
    """One read for each device."""
    found: list[Facts | None] = [None] * len(facts)
    for device in {f.device for f in facts}:
        at = [i for i, f in enumerate(facts) if f.device == device]
        for i, numbers in zip(at, torch.stack([facts[i] for i in at]).tolist(), strict=True):
            found[i] = Facts(*numbers)
    return [f for f in found if f is not None]
