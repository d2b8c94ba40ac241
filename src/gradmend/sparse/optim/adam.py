"""Adam and AdamW by rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.kernels import rows
from gradmend.sparse.kernels.rows import Touched
from gradmend.sparse.optim.base import Group, RowOptimizer
from gradmend.sparse.optim.slots import State, real, untouched

_CHUNK = 1 << 20  # rows that settle() takes at once


class RowAdam(RowOptimizer):
    """torch.optim.SparseAdam on sparse gradients, several times faster; torch.optim.Adam, to the last bit, on dense ones.

    The two differ in eps: Adam adds it to the root of the corrected second moment, SparseAdam to that of the raw one.
    `weight_decay` is AdamW's. On sparse gradients it shrinks the rows touched, once each time they are
    (`decay="touched"`), or by all that they have missed since (`decay="lazy"`): then `settle()` brings all rows to where
    AdamW's decay would have them. Complex numbers are pairs of real ones, as in torch.optim.Adam.

    >>> table = torch.nn.Embedding(1000, 16, sparse=True)
    >>> optimizer = RowAdam(table.parameters(), lr=1e-3, weight_decay=0.01)
    """

    _NAMES = ("exp_avg", "exp_avg_sq")
    _WHOLE = ("last", "decayed")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        decay: str = "touched",
        error_if_nonfinite: bool = True,
    ) -> None:
        if not all(0 <= b < 1 for b in betas):
            raise ValueError(f"betas must be at least 0 and below 1, not {betas}.")
        if decay not in ("touched", "lazy"):
            raise ValueError(f'decay is "touched" or "lazy", not {decay!r}.')
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "decay": decay}
        super().__init__(params, {**defaults, "error_if_nonfinite": error_if_nonfinite})

    def _fills(self, group: Group) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    def _lazy(self, group: Group) -> bool:
        return group["decay"] == "lazy" and group["weight_decay"] != 0

    def _check_numbers(self, group: Group) -> None:
        if self._lazy(group) and float(group["lr"]) * group["weight_decay"] >= 1:
            raise ValueError(
                f"lazy decay takes lr * weight_decay below 1, not {group['lr']} * {group['weight_decay']}."
            )

    def _corrected(self, state: State, group: Group) -> tuple[float, float, float]:
        beta1, beta2 = group["betas"]
        keep = 1 - float(group["lr"]) * group["weight_decay"]
        return 1 - beta1 ** state["step"], 1 - beta2 ** state["step"], keep

    def _rows(self, param: Tensor, grad: Touched, state: State, group: Group) -> None:
        first, second, keep = self._corrected(state, group)
        beta1, beta2 = group["betas"]
        slots = self._state_of(param, grad, state, group)
        keeps = self._missed(param, grad.rows, state, keep) if self._lazy(group) else None
        rows.adam(
            real(param),
            grad,
            slots,
            real(state["exp_avg"]),
            real(state["exp_avg_sq"]),
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
            size=float(group["lr"]) * math.sqrt(second) / first,
            keep=keep,
            keeps=keeps,
        )

    def _missed(self, param: Tensor, touched: Tensor, state: State, keep: float) -> Tensor:
        """[rows]: what decay leaves of each row, for this step and all that it was not touched in."""
        if "last" not in state:
            # A number for every row, since rows without moments decay too; memory comes with the pages written.
            state["last"] = untouched(param.shape[0], torch.float64, param.device)
            state["decayed"] = 0.0
        state["decayed"] += math.log(keep)
        keeps = state["last"].index_select(0, touched).neg_().add_(state["decayed"]).exp_()
        state["last"].index_fill_(0, touched, state["decayed"])
        return keeps

    @torch.no_grad()
    def settle(self) -> None:
        """With `decay="lazy"`: shrinks every row by what it has missed. For evaluation, and before saving the table."""
        for group in self.param_groups:
            for param in group["params"]:
                self._settle(param, self.state.get(param, {}))

    def _settle(self, param: Tensor, state: State) -> None:
        if "last" not in state:
            return
        for part, last in zip(param.split(_CHUNK), state["last"].split(_CHUNK), strict=True):
            keeps = (state["decayed"] - last).exp_().to(param.dtype)
            part.mul_(keeps.view(-1, *[1] * (param.dim() - 1)))
        state["last"].fill_(state["decayed"])

    def _dense(self, param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        self._whole_state(param, state, group)
        self._settle(param, state)
        first, second, keep = self._corrected(state, group)
        beta1, beta2 = group["betas"]
        param, grad = real(param), real(grad)
        mean, square = real(state["exp_avg"]), real(state["exp_avg_sq"])
        # torch.optim.Adam's own operations in their order, so that not a bit differs; decay as AdamW has it.
        if group["weight_decay"] != 0:
            param.mul_(keep)
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        below = (square.sqrt() / second**0.5).add_(group["eps"])
        param.addcdiv_(mean, below, value=-(float(group["lr"]) / first))


class RowAdamW(RowAdam):
    """RowAdam with AdamW's defaults: decay of 0.01, lazy, so that `settle()` leaves what AdamW's decay would."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        decay: str = "lazy",
        error_if_nonfinite: bool = True,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, decay=decay, error_if_nonfinite=error_if_nonfinite
        )
