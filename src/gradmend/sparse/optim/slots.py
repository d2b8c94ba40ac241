"""State for the rows that were touched: a slot for each, given out as rows come, and room that grows with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradmend.sparse.errors import SparseError

_ROOM = 1024  # slots at first
State = dict[str, Any]


def untouched(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros whose memory comes with the pages that are written: torch.zeros writes all of them."""
    if device.type != "cpu":
        return torch.zeros(n, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(n, {torch.int32: np.int32, torch.float64: np.float64}[dtype]))


class Slots:
    """Row -> slot. Four bytes for each row of the table, of which the system gives memory only for pages in use."""

    def __init__(self, total: int, device: torch.device, rows: Tensor | None = None) -> None:
        self._slot = untouched(total, torch.int32, device)
        self.count = 0
        if rows is not None:
            self.count = rows.shape[0]
            self._slot[rows] = self._numbers(0, self.count)

    def _numbers(self, first: int, last: int) -> Tensor:
        return torch.arange(first + 1, last + 1, dtype=torch.int32, device=self._slot.device)

    def find(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Different rows -> their slots, and those of the rows that had none. New slots follow the old ones."""
        found = self._slot.index_select(0, rows)
        new = (found == 0).nonzero().squeeze(1)
        fresh = rows.index_select(0, new)
        if fresh.shape[0]:
            numbers = self._numbers(self.count, self.count + fresh.shape[0])
            found[new] = numbers
            self._slot[fresh] = numbers
            self.count += fresh.shape[0]
        return found.to(torch.int64).sub_(1), fresh


def start(state: State, param: Tensor, fills: dict[str, float], by_row: tuple[str, ...] = ()) -> None:
    """Room for a few rows. `by_row`: state of one number a row."""
    room = min(_ROOM, param.shape[0])
    state["rows"] = torch.empty(room, dtype=torch.int64, device=param.device)
    for name, fill in fills.items():
        shape = () if name in by_row else param.shape[1:]
        state[name] = torch.full((room, *shape), fill, dtype=param.dtype, device=param.device)


def give(state: State, slots: Slots, rows: Tensor, fills: dict[str, float]) -> Tensor:
    """The slots of different rows; new ones hold `fills`."""
    before = slots.count
    found, fresh = slots.find(rows)
    room = state["rows"].shape[0]
    if slots.count > room:
        more = min(max(slots.count, room * 3 // 2), slots._slot.shape[0])
        for name in ("rows", *fills):
            old: Tensor = state[name]
            state[name] = torch.empty(more, *old.shape[1:], dtype=old.dtype, device=old.device)
            state[name][:before] = old[:before]
    if fresh.shape[0]:
        state["rows"][before : slots.count] = fresh
        for name, fill in fills.items():
            state[name][before : slots.count] = fill
    return found


def spread(state: State, slots: Slots, total: int, fills: dict[str, float]) -> None:
    """State of the rows touched -> state of all rows: a dense gradient touches them all."""
    rows = state.pop("rows")[: slots.count]
    for name, fill in fills.items():
        part: Tensor = state[name][: slots.count]
        state[name] = torch.full((total, *part.shape[1:]), fill, dtype=part.dtype, device=part.device)
        state[name].index_copy_(0, rows, part)


def check_loaded(state: State, param: Tensor, names: tuple[str, ...]) -> None:
    """What a file says of a parameter's rows, before anything is taken over."""
    rows = state["rows"]
    good = isinstance(rows, Tensor) and rows.dtype == torch.int64 and rows.dim() == 1
    good = good and all(isinstance(state.get(n), Tensor) and state[n].shape[:1] == rows.shape for n in names)
    if good and rows.shape[0]:
        good = int(rows.min()) >= 0 and int(rows.max()) < param.shape[0]
        good = good and torch.unique(rows).shape[0] == rows.shape[0]
    for name in names if good else ():
        good = good and (state[name].dim() == 1 or state[name].shape[1:] == param.shape[1:])
    if not good:
        raise SparseError(
            f"the saved state is of other rows than a parameter of the shape {tuple(param.shape)} has: load the state "
            f"of the same table, or begin without."
        )
