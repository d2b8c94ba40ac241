"""Adam and Adagrad by rows: torch.optim's formulas on the rows that have a gradient, in one pass over them.

Unlike torch.optim.SparseAdam they take dense gradients too, and weight decay, which shrinks the rows touched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.errors import SparseError
from gradmend.sparse.kernels import rows


class _RowWise(torch.optim.Optimizer):
    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        for name, low in (("lr", 0.0), ("eps", 0.0), ("weight_decay", 0.0)):
            if defaults[name] < low:
                raise ValueError(f"{name} must be at least {low}, not {defaults[name]}.")
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, _checked(param), group)
        return loss

    def _update(self, param: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError


def _checked(param: Tensor) -> Tensor:
    grad = param.grad
    assert grad is not None
    if grad.layout == torch.strided or (grad.layout == torch.sparse_coo and grad.sparse_dim() == 1):
        return grad
    raise SparseError(
        f"a row-wise optimizer takes dense gradients and COO gradients with one sparse dimension, as an Embedding's "
        f"are, not {grad.layout} with {grad.sparse_dim() if grad.is_sparse else 2}: make the values the parameter "
        f"(gradmend.sparse.SparseTensor), and use any optimizer."
    )


class RowAdam(_RowWise):
    """torch.optim.SparseAdam on sparse gradients, a few times faster; torch.optim.Adam, to the last bit, on dense ones.

    The two differ in eps: Adam adds it to the root of the corrected second moment, SparseAdam to that of the raw one.
    `weight_decay` is AdamW's, and on sparse gradients shrinks the rows touched.

    >>> table = torch.nn.Embedding(1000, 16, sparse=True)
    >>> optimizer = RowAdam(table.parameters(), lr=1e-3, weight_decay=0.01)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if not all(0 <= b < 1 for b in betas):
            raise ValueError(f"betas must be at least 0 and below 1, not {betas}.")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _update(self, param: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[param]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        first, second = 1 - beta1 ** state["step"], 1 - beta2 ** state["step"]
        keep = 1 - group["lr"] * group["weight_decay"]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        if grad.layout == torch.strided:
            # torch.optim.Adam's own operations in their order, so that not a bit differs; decay as AdamW has it.
            if group["weight_decay"] != 0:
                param.mul_(keep)
            mean.lerp_(grad, 1 - beta1)
            square.mul_(beta2).addcmul_(grad, grad.conj(), value=1 - beta2)
            below = (square.sqrt() / second**0.5).add_(group["eps"])
            param.addcdiv_(mean, below, value=-(group["lr"] / first))
        else:
            size = group["lr"] * math.sqrt(second) / first
            options = {"beta1": beta1, "beta2": beta2, "eps": group["eps"], "size": size, "keep": keep}
            rows.adam(param, grad, mean, square, **options)


class RowAdagrad(_RowWise):
    """torch.optim.Adagrad's steps; weight decay is allowed with sparse gradients, and shrinks the rows touched."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        defaults = {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps}
        super().__init__(params, {**defaults, "initial_accumulator_value": initial_accumulator_value})

    def _update(self, param: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[param]
        if not state:
            state["step"] = 0
            state["sum"] = torch.full_like(param, group["initial_accumulator_value"])
        state["step"] += 1
        size = group["lr"] / (1 + (state["step"] - 1) * group["lr_decay"])
        keep = 1 - group["lr"] * group["weight_decay"]
        total = state["sum"]
        if grad.layout == torch.strided:
            total.addcmul_(grad, grad)
            param.mul_(keep).addcdiv_(grad, total.sqrt().add_(group["eps"]), value=-size)
        else:
            rows.adagrad(param, grad, total, eps=group["eps"], size=size, keep=keep)
