"""What all row-wise optimizers share: gradients are looked at before anything changes, and state is kept by rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.errors import SparseError
from gradmend.sparse.kernels import rows as kernel
from gradmend.sparse.kernels.rows import Touched
from gradmend.sparse.optim import slots as slotted
from gradmend.sparse.optim.slots import Slots, State

Group = dict[str, Any]


class RowOptimizer(torch.optim.Optimizer):
    """Dense gradients take torch.optim's own steps; a COO gradient with one sparse dimension touches its rows alone.

    State is kept for rows that have had a gradient, and room for it grows as they come; a parameter that gets a dense
    gradient has state for all of its rows from then on. A gradient with NaN or infinity, or one that does not fit, is
    an error before any parameter has changed (`error_if_nonfinite=False`: numbers are taken as they are).
    """

    _BY_ROW: tuple[str, ...] = ()  # state of one number a row

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        for name, low in (("lr", 0.0), ("eps", 0.0), ("weight_decay", 0.0)):
            if name in defaults and not defaults[name] >= low:
                raise ValueError(f"{name} must be at least {low}, not {defaults[name]}.")
        self._slots: dict[Tensor, Slots] = {}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, param, grad in self._checked():
            state = self.state[param]
            if not state:
                state["step"] = 0
            state["step"] += 1
            if isinstance(grad, Touched):
                self._rows(param, grad, state, group)
            else:
                self._dense(param, grad, state, group)
        return loss

    def _checked(self) -> list[tuple[Group, Tensor, Tensor | Touched]]:
        """All gradients of this step, after each has been looked at."""
        found: list[tuple[Group, Tensor, Tensor | Touched]] = []
        for number, group in enumerate(self.param_groups):
            self._check_numbers(group)
            for place, param in enumerate(group["params"]):
                if param.grad is None:
                    continue
                grad = _fitting(param, param.grad)
                if group["error_if_nonfinite"] and not kernel.finite(
                    grad.values if isinstance(grad, Touched) else grad
                ):
                    raise SparseError(
                        f"the gradient of parameter {place} of group {number}, of the shape {tuple(param.shape)}, holds "
                        f"NaN or infinity; no parameter was changed. Skip this step, look for the cause with "
                        f"torch.autograd.set_detect_anomaly(True), or pass error_if_nonfinite=False."
                    )
                found.append((group, param, grad))
        return found

    def _check_numbers(self, group: Group) -> None:
        """Schedulers change a group's numbers: what a step can't take is an error here."""

    def _rows(self, param: Tensor, grad: Touched, state: State, group: Group) -> None:
        raise NotImplementedError

    def _dense(self, param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        raise NotImplementedError

    def _fills(self, group: Group) -> dict[str, float]:
        """The names of the state that rows have, and what it is at first."""
        raise NotImplementedError

    # State

    def _slots_of(self, param: Tensor, state: State) -> Slots:
        found = self._slots.get(param)
        if found is None or found._slot.device != param.device:
            rows = state["rows"][: found.count] if found is not None else state["rows"]
            found = self._slots[param] = Slots(param.shape[0], param.device, rows)
        return found

    def _state_of(self, param: Tensor, grad: Touched, state: State, group: Group) -> Tensor:
        """Where the state of the rows touched lies."""
        fills = self._fills(group)
        if any(name not in state for name in fills):
            self._slots[param] = Slots(param.shape[0], param.device)
            slotted.start(state, param, fills, self._BY_ROW)
        if "rows" not in state:
            return grad.rows
        return slotted.give(state, self._slots_of(param, state), grad.rows, fills)

    def _whole_state(self, param: Tensor, state: State, group: Group) -> None:
        """State for all rows."""
        fills = self._fills(group)
        if "rows" in state:
            slotted.spread(state, self._slots_of(param, state), param.shape[0], fills)
        for name, fill in fills.items():
            if name not in state:
                if name in self._BY_ROW:
                    state[name] = torch.full(param.shape[:1], fill, dtype=param.dtype, device=param.device)
                else:
                    state[name] = torch.full_like(param, fill, memory_format=torch.preserve_format)

    def state_dict(self) -> dict[str, Any]:
        """As torch's; the state of rows is cut to those that have some, with their numbers in `rows`."""
        made = super().state_dict()
        order = [(p, group) for group in self.param_groups for p in group["params"]]
        for number, state in list(made["state"].items()):
            if "rows" in state:
                param, group = order[number]
                made["state"][number] = self._cut(param, group, state)
        return made

    def _cut(self, param: Tensor, group: Group, state: State) -> State:
        count = self._slots_of(param, state).count
        by_slot = {name: state[name][:count].clone() for name in ("rows", *self._fills(group))}
        return {**state, **by_slot}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [(p, group) for group in self.param_groups for p in group["params"]]
        kept: dict[Tensor, State] = {}
        if len(ids) == len(params):  # torch says so itself if not
            for number, (param, group) in zip(ids, params, strict=True):
                state = state_dict["state"].get(number, {})
                if "rows" in state:
                    slotted.check_loaded(state, param, tuple(self._fills(group)))
                    kept[param] = state
        super().load_state_dict(state_dict)
        self._slots.clear()
        for param, state in kept.items():
            # torch casts all state to the parameter's dtype: whole numbers and doubles are taken as they were.
            for name in ("rows", "last"):
                if name in state:
                    self.state[param][name] = state[name].to(param.device, copy=True)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._slots = {}
        super().__setstate__(state)

    def __getstate__(self) -> dict[str, Any]:
        made = super().__getstate__()
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state.get(param, {})
                if "rows" in state:  # a copy numbers its slots by what `rows` holds
                    state.update(self._cut(param, group, state))
        return made


def _fitting(param: Tensor, grad: Tensor) -> Tensor | Touched:
    if grad.layout == torch.strided:
        return grad
    if grad.layout == torch.sparse_coo and grad.sparse_dim() == 1:
        return kernel.touched(param, grad)
    raise SparseError(
        f"a row-wise optimizer takes dense gradients and COO gradients with one sparse dimension, as an Embedding's "
        f"are, not {grad.layout} with {grad.sparse_dim() if grad.is_sparse else 2}: make the values the parameter "
        f"(gradmend.sparse.SparseTensor), and use any optimizer."
    )
