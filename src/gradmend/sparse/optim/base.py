"""What all row-wise optimizers share: gradients are looked at before anything changes, and state is kept by rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradmend.sparse.errors import SparseError
from gradmend.sparse.kernels import rows as kernel
from gradmend.sparse.kernels import unread
from gradmend.sparse.kernels.rows import Touched
from gradmend.sparse.kernels.team import short
from gradmend.sparse.kernels.unread import Unread
from gradmend.sparse.optim import fitting
from gradmend.sparse.optim import slots as slotted
from gradmend.sparse.optim.slots import Slots, State

Group = dict[str, Any]
_SHORT = 1 << 20  # numbers


class Waiting(NamedTuple):
    """A gradient on a device, whose numbers are read with those of all others."""

    at: int  # among the gradients of the step
    name: str
    facts: Tensor
    grad: Tensor | Unread


class RowOptimizer(torch.optim.Optimizer):
    """Dense gradients take torch.optim's own steps; a COO gradient with one sparse dimension touches its rows alone.

    State is kept for rows that have had a gradient, and room for it grows as they come; a parameter that gets a dense
    gradient has state for all of its rows from then on. A gradient with NaN or infinity, or one that does not fit, is
    an error before any parameter has changed (`error_if_nonfinite=False`: numbers are taken as they are).
    """

    _NAMES: tuple[str, ...] = ()  # the state that rows have
    _BY_ROW: tuple[str, ...] = ()  # those of one number a row
    _WHOLE: tuple[str, ...] = ()  # what lazy decay remembers, of all rows together

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
        with short() if self._is_short() else nullcontext():
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

    def _is_short(self) -> bool:
        """Whether all gradients are of a few rows on the CPU."""
        for group in self.param_groups:
            for param in group["params"]:
                grad = param.grad
                if grad is None:
                    continue
                if not grad.is_cpu or grad.layout != torch.sparse_coo or grad._values().numel() > _SHORT:
                    return False
        return True

    def _checked(self) -> list[tuple[Group, Tensor, Tensor | Touched]]:
        """All gradients of this step, after each has been looked at, and the state with it."""
        found: list[tuple[Group, Tensor, Tensor | Touched]] = []
        waiting: list[Waiting] = []  # on a device: looked at together
        for number, group in enumerate(self.param_groups):
            self._check_numbers(group)
            for place, param in enumerate(group["params"]):
                if param.grad is None:
                    continue
                name = f"parameter {place} of group {number}, of the shape {tuple(param.shape)},"
                if why := self._misfit(param):
                    raise SparseError(
                        f"the state of {name} does not fit it any more: {why}; no parameter was changed. Make a new "
                        f"optimizer for a parameter that was made longer or shorter."
                    )
                if not param.is_cpu:
                    waiting.append(self._waiting(len(found), name, param, param.grad))
                    found.append((group, param, param.grad))
                    continue
                grad = _fitting(param, param.grad)
                values = grad.values if isinstance(grad, Touched) else grad
                if group["error_if_nonfinite"] and not kernel.finite(values):
                    raise _nonfinite(name)
                found.append((group, param, grad))
        if waiting:
            _read(found, waiting)
        return found

    def _waiting(self, at: int, name: str, param: Tensor, grad: Tensor) -> Waiting:
        if grad.layout == torch.strided:
            given = _dense(param, grad)
            return Waiting(at, name, unread.of_all(given), given)
        _row_gradient(grad)
        state = self.state.get(param, {})
        slots = self._slots_of(param, state)._slot if "rows" in state else None
        made = unread.of_rows(param, grad, slots)
        return Waiting(at, name, made.facts, made._replace(values=slotted.real(made.values.resolve_conj())))

    def _misfit(self, param: Tensor) -> str | None:
        slots = self._slots.get(param)
        if slots is not None and slots.total != param.shape[0]:
            return f"it is of {slots.total} rows"
        return fitting.misfit(self.state.get(param, {}), param, self._NAMES, self._BY_ROW)

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
        return slotted.give(state, self._slots_of(param, state), grad.rows, fills, grad.fresh)

    def _whole_state(self, param: Tensor, state: State, group: Group) -> None:
        """State for all rows."""
        fills = self._fills(group)
        if "rows" in state:
            slotted.spread(state, self._slots_of(param, state), param.shape[0], fills)
        for name, fill in fills.items():
            if name not in state:
                shape, dtype = slotted.shape_of(param, name in self._BY_ROW)
                if shape == param.shape:
                    room = torch.empty_like(param, memory_format=torch.preserve_format)
                else:
                    room = torch.empty(shape, dtype=dtype, device=param.device)
                state[name] = slotted.filled(room, fill)

    def state_dict(self) -> dict[str, Any]:
        """As torch's; the state of rows is cut to those that have some, with their numbers in `rows`."""
        made = super().state_dict()
        order = [p for group in self.param_groups for p in group["params"]]
        for number, state in list(made["state"].items()):
            if "rows" in state:
                made["state"][number] = self._cut(order[number], state)
        return made

    def _cut(self, param: Tensor, state: State) -> State:
        count = self._slots_of(param, state).count
        by_slot = {name: state[name][:count].clone() for name in ("rows", *self._NAMES)}
        return {**state, **by_slot}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's; state of other parameters or of another optimizer is an error, and nothing is loaded."""
        kept: dict[Tensor, State] = {}

        def look(_: torch.optim.Optimizer, given: dict[str, Any]) -> None:
            kept.update(self._looked_at(given))

        last = self.register_load_state_dict_pre_hook(
            look
        )  # after the user's hooks, which may adapt the state
        try:
            super().load_state_dict(state_dict)
        finally:
            last.remove()
        self._slots.clear()
        for param, state in kept.items():
            # torch casts all state to the parameter's dtype: whole numbers and doubles are taken as they were.
            for name, dtype in (("rows", torch.int64), ("last", torch.float64)):
                if name in state:
                    self.state[param][name] = state[name].to(param.device, dtype, copy=True)

    def _looked_at(self, given: dict[str, Any]) -> dict[Tensor, State]:
        """The state of each parameter, after all of it was held against this optimizer."""
        if not isinstance(given.get("param_groups"), list) or not isinstance(given.get("state"), dict):
            raise _unfit("it holds no param_groups and state, as state_dict() gives them")
        groups: list[Group] = given["param_groups"]
        found: dict[Tensor, State] = {}
        if [len(g["params"]) for g in groups] != [len(g["params"]) for g in self.param_groups]:
            return found  # torch says so itself
        for number, (saved, group) in enumerate(zip(groups, self.param_groups, strict=True)):
            if missing := sorted(self.defaults.keys() - saved.keys()):
                raise _unfit(f"group {number} has no {', '.join(missing)}: it is of another optimizer")
            for place, (key, param) in enumerate(zip(saved["params"], group["params"], strict=True)):
                state = given["state"].get(key)
                if not state:
                    continue
                why = fitting.misfit_loaded(state, param, self._NAMES, self._BY_ROW, self._WHOLE)
                if why:
                    of = f"parameter {place} of group {number}, of the shape {tuple(param.shape)}"
                    raise _unfit(f"of {of}, {why}")
                found[param] = state
        return found

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._slots = {}
        super().__setstate__(state)

    def __getstate__(self) -> dict[str, Any]:
        made = super().__getstate__()
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state.get(param, {})
                if "rows" in state:  # a copy numbers its slots by what `rows` holds
                    state.update(self._cut(param, state))
        return made


def _unfit(why: str) -> SparseError:
    return SparseError(
        f"the saved state does not fit this optimizer: {why}. Nothing was loaded: load the state of the same table and "
        f"optimizer, or begin without."
    )


def _read(found: list[tuple[Group, Tensor, Tensor | Touched]], waiting: list[Waiting]) -> None:
    """What the host must know of gradients on a device, in one read."""
    for one, fact in zip(waiting, unread.read([one.facts for one in waiting]), strict=True):
        group, param, _ = found[one.at]
        if fact.low < 0 or fact.high >= max(param.shape[0], 1):
            raise SparseError(
                f"the gradient of {one.name} names rows from {fact.low} to {fact.high}; no parameter was changed."
            )
        if group["error_if_nonfinite"] and not fact.finite:
            raise _nonfinite(one.name)
        found[one.at] = (group, param, one.grad.touched(fact) if isinstance(one.grad, Unread) else one.grad)


def _nonfinite(name: str) -> SparseError:
    return SparseError(
        f"the gradient of {name} holds NaN or infinity; no parameter was changed. Skip this step, look for the cause with "
        f"torch.autograd.set_detect_anomaly(True), or pass error_if_nonfinite=False."
    )


def _fitting(param: Tensor, grad: Tensor) -> Tensor | Touched:
    if grad.layout == torch.strided:
        return _dense(param, grad)
    _row_gradient(grad)
    found = kernel.touched(param, grad)
    return found._replace(values=slotted.real(found.values.resolve_conj()))


def _dense(param: Tensor, grad: Tensor) -> Tensor:
    if grad.shape != param.shape:
        raise SparseError(
            f"the gradient has the shape {tuple(grad.shape)}, and its parameter {tuple(param.shape)}."
        )
    return grad.resolve_conj()


def _row_gradient(grad: Tensor) -> None:
    if grad.layout == torch.sparse_coo and grad.sparse_dim() == 1:
        return
    raise SparseError(
        f"a row-wise optimizer takes dense gradients and COO gradients with one sparse dimension, as an Embedding's "
        f"are, not {grad.layout} with {grad.sparse_dim() if grad.is_sparse else 2}: make the values the parameter "
        f"(gradmend.sparse.SparseTensor), and use any optimizer."
    )
