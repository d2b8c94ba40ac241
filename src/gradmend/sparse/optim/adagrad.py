"""Adagrad by rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from gradmend.sparse.kernels import rows
from gradmend.sparse.kernels.rows import Touched
from gradmend.sparse.optim.base import Group, RowOptimizer
from gradmend.sparse.optim.slots import State, real


class RowAdagrad(RowOptimizer):
    """torch.optim.Adagrad's steps; weight decay is allowed with sparse gradients, and shrinks the rows touched.

    `by_row`: one number of state for each row, the mean of its squares, as recommenders often have it. Complex numbers
    are pairs of real ones, as torch's dense steps have them.
    """

    _NAMES = ("sum",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        by_row: bool = False,
        error_if_nonfinite: bool = True,
    ) -> None:
        defaults = {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps}
        start = {"initial_accumulator_value": initial_accumulator_value}
        if by_row:
            self._BY_ROW = ("sum",)
        super().__init__(params, {**defaults, **start, "error_if_nonfinite": error_if_nonfinite})

    def __getstate__(self) -> dict[str, Any]:
        # torch's has groups and state alone: a copy must know how its state is shaped.
        return {**super().__getstate__(), "_BY_ROW": self._BY_ROW}

    def _fills(self, group: Group) -> dict[str, float]:
        return {"sum": group["initial_accumulator_value"]}

    def _numbers(self, state: State, group: Group) -> dict[str, float]:
        size = float(group["lr"]) / (1 + (state["step"] - 1) * group["lr_decay"])
        return {"size": size, "keep": 1 - float(group["lr"]) * group["weight_decay"], "eps": group["eps"]}

    def _rows(self, param: Tensor, grad: Touched, state: State, group: Group) -> None:
        slots = self._state_of(param, grad, state, group)
        rows.adagrad(real(param), grad, slots, real(state["sum"]), **self._numbers(state, group))

    def _dense(self, param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        self._whole_state(param, state, group)
        given = self._numbers(state, group)
        by_row = self._BY_ROW and param.dim() > 1
        param, grad, total = real(param), real(grad), real(state["sum"])
        param.mul_(given["keep"])
        if by_row:
            total.add_(grad.square().flatten(1).mean(1))
            below = total.sqrt().add_(given["eps"]).view(-1, *[1] * (param.dim() - 1))
            param.addcdiv_(grad, below.expand_as(grad), value=-given["size"])
        else:
            total.addcmul_(grad, grad)
            param.addcdiv_(grad, total.sqrt().add_(given["eps"]), value=-given["size"])
