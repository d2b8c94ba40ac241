"""Whether state is of the parameter that it is held for: asked when it is loaded, and before each step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradmend.sparse.optim.slots import State, shape_of


def misfit(state: State, param: Tensor, names: tuple[str, ...], by_row: tuple[str, ...]) -> str | None:
    """Which state has another shape than the parameter asks for, in words; None if all fits."""
    rows = state.get("rows")
    for name in names:
        if name in state:
            shape, _ = shape_of(param, name in by_row)
            wanted = shape if rows is None else (rows.shape[0], *shape[1:])
            if (found := _shape(state[name])) != wanted:
                return f"its {name} has the shape {found}, and {wanted} is needed"
    if "last" in state and (found := _shape(state["last"])) != tuple(param.shape[:1]):
        return f"its last has the shape {found}, and {tuple(param.shape[:1])} is needed"
    return None


def misfit_loaded(
    state: State, param: Tensor, names: tuple[str, ...], by_row: tuple[str, ...], known: tuple[str, ...]
) -> str | None:
    """The same of what a file holds, which may be anything."""
    if strange := sorted(str(name) for name in set(state) - {"step", "rows", *names, *known}):
        return f"it holds {', '.join(strange)}, which this optimizer does not have"
    if not isinstance(step := state.get("step"), int) or step < 0:
        return f"its step is {step!r}, and a whole number is needed"
    known = known if any(name in state for name in known) else ()
    names_too = names if "rows" in state or any(name in state for name in names) else ()
    if missing := [name for name in (*names_too, *known) if name not in state]:
        return f"it holds no {', '.join(missing)}"
    for name in (*names, *known, "rows"):
        held = state.get(name, 0.0)
        if name in state and name != "decayed" and not isinstance(held, Tensor):
            return f"its {name} is {type(held).__name__}, and a tensor is needed"
    if "decayed" in known and not (isinstance(state["decayed"], float) and math.isfinite(state["decayed"])):
        return f"its decayed is {state['decayed']!r}, and a number is needed"
    rows = state.get("rows")
    if rows is not None:
        if rows.dtype != torch.int64 or rows.dim() != 1:
            return (
                f"its rows are {rows.dtype} of the shape {tuple(rows.shape)}, and a vector of int64 is needed"
            )
        if rows.shape[0] and not 0 <= int(rows.min()) <= int(rows.max()) < param.shape[0]:
            return f"its rows go from {int(rows.min())} to {int(rows.max())}, and the parameter has {param.shape[0]}"
        if torch.unique(rows).shape[0] != rows.shape[0]:
            return "it holds some rows twice"
    return misfit(state, param, names, by_row)


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)
