"""State for the rows that were touched: a slot for each, given out as rows come, and room that grows with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradmend.sparse.kernels import memory

_ROOM = 1024  # slots at first
_MUCH = (
    1 << 14
)  # slots from which room for many more costs nothing: memory comes with the pages that are written
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

    @property
    def total(self) -> int:
        """The rows of the table."""
        return self._slot.shape[0]

    def _numbers(self, first: int, last: int) -> Tensor:
        return torch.arange(first + 1, last + 1, dtype=torch.int32, device=self._slot.device)

    def find(self, rows: Tensor, fresh_rows: int | None = None) -> tuple[Tensor, Tensor | None]:
        """Different rows -> their slots, and those of the rows that had none. New slots follow the old ones.

        `fresh_rows`: how many rows have none, if known. Then nothing is read, and which they are is not said.
        """
        found = self._slot.index_select(0, rows)
        if fresh_rows is not None:
            if fresh_rows:
                new = found == 0
                found = torch.where(new, new.cumsum(0, dtype=torch.int32) + self.count, found)
                self._slot.index_copy_(0, rows, found)
                self.count += fresh_rows
            return found.to(torch.int64).sub_(1), None
        if bool(found.all()):
            return found.to(torch.int64).sub_(1), rows[:0]
        new = (found == 0).nonzero().squeeze(1)
        fresh = rows.index_select(0, new)
        if fresh.shape[0]:
            numbers = self._numbers(self.count, self.count + fresh.shape[0])
            found[new] = numbers
            self._slot[fresh] = numbers
            self.count += fresh.shape[0]
        return found.to(torch.int64).sub_(1), fresh


def real(x: Tensor) -> Tensor:
    """Complex numbers as pairs of real ones, in the same memory: so torch.optim.Adam and Adagrad step them."""
    return torch.view_as_real(x) if x.is_complex() else x


def filled(like: Tensor, number: float) -> Tensor:
    """`like`, with both halves of complex numbers at `number`."""
    real(like).fill_(number)
    return like


def shape_of(param: Tensor, one_number: bool) -> tuple[tuple[int, ...], torch.dtype]:
    """The shape of all rows' state, and its dtype. `one_number`: a row has one, and that is real."""
    if one_number and param.dim() > 1:
        return tuple(param.shape[:1]), param.dtype.to_real()
    return tuple(param.shape), param.dtype


def start(state: State, param: Tensor, fills: dict[str, float], by_row: tuple[str, ...] = ()) -> None:
    """Room for a few rows. `by_row`: state of one number a row."""
    room = min(_ROOM, param.shape[0])
    state["rows"] = torch.empty(room, dtype=torch.int64, device=param.device)
    for name, fill in fills.items():
        shape, dtype = shape_of(param, name in by_row)
        state[name] = torch.full((room, *shape[1:]), 0, dtype=dtype, device=param.device)
        if fill != 0:
            filled(state[name], fill)


def give(
    state: State, slots: Slots, rows: Tensor, fills: dict[str, float], fresh_rows: int | None = None
) -> Tensor:
    """The slots of different rows; new ones hold `fills`."""
    before = slots.count
    found, fresh = slots.find(rows, fresh_rows)
    room = state["rows"].shape[0]
    if slots.count > room:
        lazily = rows.is_cpu and room >= _MUCH
        more = min(max(slots.count, room * 4 if lazily else room * 3 // 2), slots.total)
        for name in ("rows", *fills):
            old: Tensor = state[name]
            state[name] = _room((more, *old.shape[1:]), old)
            state[name][:before] = old[:before]
    if slots.count > before:
        if fresh is None:
            state["rows"].index_copy_(0, found, rows)
        else:
            state["rows"][before : slots.count] = fresh
        for name, fill in fills.items():
            if fill != 0:  # room is zero
                filled(state[name][before : slots.count], fill)
    return found


def _room(shape: tuple[int, ...], like: Tensor) -> Tensor:
    if like.is_cpu:
        return memory.zeros(shape, like.dtype)
    return torch.zeros(shape, dtype=like.dtype, device=like.device)


def spread(state: State, slots: Slots, total: int, fills: dict[str, float]) -> None:
    """State of the rows touched -> state of all rows: a dense gradient touches them all."""
    rows = state.pop("rows")[: slots.count]
    for name, fill in fills.items():
        part: Tensor = state[name][: slots.count]
        state[name] = filled(part.new_empty(total, *part.shape[1:]), fill)
        state[name].index_copy_(0, rows, part)
