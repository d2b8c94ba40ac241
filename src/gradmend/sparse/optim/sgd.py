"""SGD by rows, with momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from gradmend.sparse.kernels import rows
from gradmend.sparse.kernels.rows import Touched
from gradmend.sparse.optim.base import Group, RowOptimizer
from gradmend.sparse.optim.slots import State, real


class RowSGD(RowOptimizer):
    """torch.optim.SGD on dense gradients; on sparse ones the same formula for the rows touched, momentum included.

    Without momentum and decay that is SGD exactly. Momentum of a row rests while the row is not touched.
    """

    _NAMES = ("momentum_buffer",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        error_if_nonfinite: bool = True,
    ) -> None:
        if not momentum >= 0:
            raise ValueError(f"momentum must be at least 0, not {momentum}.")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("nesterov takes a momentum and no dampening.")
        defaults = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "nesterov": nesterov, "error_if_nonfinite": error_if_nonfinite})

    def _fills(self, group: Group) -> dict[str, float]:
        return {"momentum_buffer": 0.0} if group["momentum"] else {}

    def _rows(self, param: Tensor, grad: Touched, state: State, group: Group) -> None:
        slots, known = None, 0
        if group["momentum"]:
            if "momentum_buffer" in state:  # slots that are given now have no momentum yet
                known = self._slots_of(param, state).count if "rows" in state else param.shape[0]
            slots = self._state_of(param, grad, state, group)
        rows.sgd(
            real(param),
            grad,
            slots,
            real(state["momentum_buffer"]) if group["momentum"] else None,
            size=float(group["lr"]),
            decay=group["weight_decay"],
            momentum=group["momentum"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            known=known,
        )

    def _dense(self, param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        momentum = group["momentum"]
        if group["weight_decay"]:
            grad = grad.add(param, alpha=group["weight_decay"])
        if momentum:
            fresh = "momentum_buffer" not in state
            self._whole_state(param, state, group)
            buffer = state["momentum_buffer"]
            if fresh:
                buffer.copy_(grad)
            else:
                buffer.mul_(momentum).add_(grad, alpha=1 - group["dampening"])
            grad = grad.add(buffer, alpha=momentum) if group["nesterov"] else buffer
        param.add_(grad, alpha=-float(group["lr"]))
