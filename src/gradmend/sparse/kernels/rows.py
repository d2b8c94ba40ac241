"""Optimizer steps on the rows that a COO gradient names: compiled where it pays, torch's ops everywhere else.

A gradient comes as `Touched`: the rows, each once, and which rows of `values` belong to them. State lies in tensors of
its own, at `slots`: one for each row of the table, or only for those that were ever touched. All tensors but the
gradient are changed in place; each call tells autograd so.
"""

from __future__ import annotations

import cmath
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from gradmend.sparse.kernels import checks
from gradmend.sparse.kernels.checks import address, operand, same_device
from gradmend.sparse.kernels.gate import SMALL, Plan, flat, plan, usable
from gradmend.sparse.kernels.grouping import Groups, grouped
from gradmend.sparse.kernels.memory import empty
from gradmend.sparse.kernels.team import run

_COST = 2
_HEAD = 64  # indices that say of most others that they are in no order
_INDEX = torch.int64


class Touched(NamedTuple):
    """The rows that a gradient names."""

    groups: Groups
    values: Tensor  # [n, ...], in the gradient's own order
    fresh: int | None = None  # how many of the rows have no state yet, if known

    @property
    def rows(self) -> Tensor:
        return self.groups.rows

    def summed(self) -> Tensor:
        """[rows, ...]: the gradient of each row."""
        ordered = self.values.index_select(0, self.groups.order)
        if ordered.shape[0] == self.rows.shape[0]:
            return ordered
        seg = torch.repeat_interleave(
            torch.arange(self.rows.shape[0], device=ordered.device), self.groups.crow.diff()
        )
        return ordered.new_zeros(self.rows.shape[0], *ordered.shape[1:]).index_add_(0, seg, ordered)


def fitting(param: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The row numbers [n] and values [n, ...] of a COO gradient, whose shapes are checked."""
    operand("the gradient", grad, *param.shape)
    same_device(param, grad)
    index, values = grad._indices(), grad._values()
    operand("the gradient's indices", index, 1, values.shape[0])
    operand("the gradient's values", values, None, *param.shape[1:])
    return index[0], values


def touched(param: Tensor, grad: Tensor) -> Touched:
    """What a COO gradient names, checked; nothing is changed yet."""
    index, values = fitting(param, grad)
    checks.places("rows of the gradient", index, values.shape[0], param.shape[0])
    n = values.shape[0]
    # AccumulateGrad forgets that a gradient is coalesced (2.13): it shows.
    if grad.is_coalesced() or (_ascends(index[:_HEAD]) and _ascends(index)):
        each = torch.arange(n + 1, device=index.device)
        return Touched(Groups(each, index.contiguous(), each[:n]), values)
    return Touched(grouped(index, param.shape[0], known=True), values)


def _ascends(index: Tensor) -> bool:
    return bool((index[1:] > index[:-1]).all())


def finite(values: Tensor) -> bool:
    """No NaN and no infinity; one pass, and a second only where sums overflow."""
    return cmath.isfinite(values.sum().item()) or bool(values.isfinite().all())


def take(table: Tensor, ids: Tensor) -> Tensor:
    """table[ids]; all ids are looked at."""
    operand("the table", table, None, None)
    same_device(table, ids)
    n, (length, d) = ids.shape[0], table.shape
    plain = all(type(t) in (Tensor, torch.nn.Parameter) for t in (table, ids))
    large = n * d >= max(SMALL, 1) and table.dtype in (torch.float32, torch.float64)
    if not (plain and large and usable(table) and table.is_contiguous()) or table.is_neg():
        return table.index_select(0, ids)
    if (p := plan(table.dtype, d)) is None:
        return table.index_select(0, ids)
    checks.places("ids", ids, n, length)
    from gradmend.sparse.kernels import compiled_rows

    ids, out = ids.to(_INDEX).contiguous(), empty((n, d), table.dtype)
    where = (
        address(ids, (n,), _INDEX),
        address(table, (length, d), table.dtype),
        address(out, (n, d), table.dtype),
    )
    run(compiled_rows.take(p.tag, p.runs), _COST * out.numel(), *where, n, d)
    return out


def _compiled(param: Tensor, grad: Touched, *state: Tensor, by_row: bool = False) -> tuple[Plan, int] | None:
    g = grad.values
    for t in state:
        operand("the optimizer's state", t, None, *(() if by_row else param.shape[1:]))
    same_device(param, *state)
    if g.numel() < max(SMALL, 1) or not usable(g, param, *state):
        return None
    if not all(t.is_contiguous() for t in (param, *state)):
        return None
    d = g.numel() // g.shape[0]
    if g.dtype not in (torch.float32, torch.float64) or (p := plan(g.dtype, d)) is None:
        return None
    return p, d


def _run(
    kernel: Any,
    param: Tensor,
    grad: Touched,
    slots: Tensor,
    state: tuple[Tensor, ...],
    d: int,
    *numbers: float,
    keeps: Tensor | None = None,
) -> None:
    g, n = flat(grad.values), grad.rows.shape[0]
    crow, rows, order = grad.groups
    for room in {t.shape[0] for t in state}:
        checks.places("slots", slots, n, room)
    state_at = [address(t, tuple(t.shape), g.dtype) for t in state]
    where = (
        address(crow, (n + 1,), _INDEX),
        address(rows, (n,), _INDEX),
        address(slots.contiguous(), (n,), _INDEX),
        address(order, (g.shape[0],), _INDEX),
        0 if keeps is None else address(keeps, (n,), torch.float64),
        address(g, tuple(g.shape), g.dtype),
        address(param, tuple(param.shape), g.dtype),
        *state_at,
        *[0] * (2 - len(state)),
    )
    run(kernel, _COST * g.numel(), *where, *(float(x) for x in numbers), n, d)
    for t in (param, *state):
        increment_version(t)


def _factor(keep: float, keeps: Tensor | None, like: Tensor) -> Any:
    return keep if keeps is None else keeps.to(like.dtype).view(-1, *[1] * (like.dim() - 1))


def adam(
    param: Tensor,
    grad: Touched,
    slots: Tensor,
    mean: Tensor,
    square: Tensor,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    size: float,
    keep: float,
    keeps: Tensor | None = None,
) -> None:
    """`size` is the step with its bias corrections; `keep` what weight decay leaves of the parameters, `keeps` of each."""
    found = _compiled(param, grad, mean, square)
    if found is None:
        g, rows = grad.summed(), grad.rows
        m = mean.index_select(0, slots).lerp_(g, 1 - beta1)
        v = square.index_select(0, slots).mul_(beta2).addcmul_(g, g, value=1 - beta2)
        p = param.index_select(0, rows).mul_(_factor(keep, keeps, param))
        p.addcdiv_(m, v.sqrt().add_(eps), value=-size)
        for whole, at, part in ((mean, slots, m), (square, slots, v), (param, rows, p)):
            whole.index_copy_(0, at, part)
        return
    from gradmend.sparse.kernels import compiled_rows

    how, d = found
    kernel = compiled_rows.adam(how.tag, how.runs, keeps is not None)
    _run(kernel, param, grad, slots, (mean, square), d, beta1, beta2, eps, size, keep, keeps=keeps)


def adagrad(
    param: Tensor, grad: Touched, slots: Tensor, total: Tensor, *, eps: float, size: float, keep: float
) -> None:
    """`total` has the parameter's row, or one number for each row."""
    by_row = total.dim() == 1 and param.dim() > 1
    found = _compiled(param, grad, total, by_row=by_row)
    if found is None:
        g, rows = grad.summed(), grad.rows
        more = g.square().flatten(1).mean(1) if by_row else g.square()
        s = total.index_select(0, slots).add_(more)
        root = s.sqrt().add_(eps)
        below = root.view(-1, *[1] * (g.dim() - 1)).expand_as(g) if by_row else root
        p = param.index_select(0, rows).mul_(keep).addcdiv_(g, below, value=-size)
        total.index_copy_(0, slots, s)
        param.index_copy_(0, rows, p)
        return
    from gradmend.sparse.kernels import compiled_rows

    how, d = found
    kernel = (compiled_rows.adagrad_by_row if by_row else compiled_rows.adagrad)(how.tag, how.runs)
    _run(kernel, param, grad, slots, (total,), d, 0, 0, eps, size, keep)


def sgd(
    param: Tensor,
    grad: Touched,
    slots: Tensor | None,
    buffer: Tensor | None,
    *,
    size: float,
    decay: float,
    momentum: float,
    dampening: float,
    nesterov: bool,
    known: int,
) -> None:
    """`decay` is added to the gradient. State of slots below `known` has been there before; others take the gradient."""
    state = () if buffer is None else (buffer,)
    found = _compiled(param, grad, *state)
    if found is None:
        g, rows = grad.summed(), grad.rows
        p = param.index_select(0, rows)
        if decay:
            g = g.add(p, alpha=decay)
        if buffer is not None and slots is not None:
            old = buffer.index_select(0, slots).mul_(momentum).add_(g, alpha=1 - dampening)
            m = torch.where((slots < known).view(-1, *[1] * (g.dim() - 1)), old, g)
            buffer.index_copy_(0, slots, m)
            g = g.add(m, alpha=momentum) if nesterov else m
        param.index_copy_(0, rows, p.add_(g, alpha=-size))
        return
    from gradmend.sparse.kernels import compiled_rows

    how, d = found
    kernel = compiled_rows.sgd(how.tag, how.runs, buffer is not None, nesterov)
    at = grad.rows if slots is None else slots
    _run(kernel, param, grad, at, state, d, momentum, 1 - dampening, known, size, decay)
