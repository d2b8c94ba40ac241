"""Reductions over the entries of each row, and softmax: compiled where it pays, torch's ops everywhere else.

`values` is [nnz] or [nnz, ...]; each trailing element is reduced on its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradmend.sparse.kernels import plain
from gradmend.sparse.kernels.gate import SMALL, Plan, flat, places, plan, usable
from gradmend.sparse.kernels.memory import empty
from gradmend.sparse.kernels.team import run

# An entry here is an element or a few, where SpMM has a row: it takes more of them to be worth a thread.
_COST = 4
_WIDE = (torch.float32, torch.float64)  # added up as they are


def _plan(values: Tensor, *others: Tensor) -> tuple[Plan, int] | None:
    """The plan, and the number of elements an entry has; None when torch's ops must do."""
    if values.numel() < max(SMALL, 1) or not usable(values, *others):
        return None
    d = values.numel() // values.shape[0]
    p = plan(values.dtype, d)
    return None if p is None else (p, d)


def _reduce(crow: Tensor, values: Tensor, how: str, fill: float, p: Plan, d: int) -> Tensor:
    from gradmend.sparse.kernels import compiled_segments

    crow, values, n = places(crow), flat(values), crow.numel() - 1
    out = empty((n, *values.shape[1:]), values.dtype)
    kernel = compiled_segments.reduce(p.tag, p.width, p.exact, how)
    where = (crow.data_ptr(), values.data_ptr(), out.data_ptr())
    run(kernel, _COST * values.numel(), *where, float(fill), n, d)
    return out


def _spread(crow: Tensor, values: Tensor, totals: Tensor, out: Tensor, how: str, p: Plan, d: int) -> Tensor:
    from gradmend.sparse.kernels import compiled_segments

    crow = places(crow)
    kernel = compiled_segments.spread(p.tag, p.width, p.exact, how)
    where = (crow.data_ptr(), values.data_ptr(), totals.data_ptr(), out.data_ptr())
    run(kernel, _COST * values.numel(), *where, crow.numel() - 1, d)
    return out


def segment_sum(crow: Tensor, values: Tensor) -> Tensor:
    """The sum of each row; 0 for an empty one."""
    if (found := _plan(values)) is None:
        return plain.segment_sum(crow, values)
    return _reduce(crow, values, "sum", 0, *found)


def scatter_sum(group: Tensor, values: Tensor, groups: int) -> Tensor:
    """The sum of each group, `group` [nnz] saying to which an entry belongs, in whatever order."""
    if values.dim() != 1 or (found := _plan(values)) is None or values.dtype not in _WIDE:
        return plain.scatter_sum(group, values, groups)
    from gradmend.sparse.kernels import compiled_segments

    group, values = places(group), flat(values)
    out = values.new_zeros(groups)
    kernel = compiled_segments.scatter(found[0].tag)
    kernel(group.data_ptr(), values.data_ptr(), out.data_ptr(), values.shape[0])
    return out


def gather(group: Tensor, totals: Tensor) -> Tensor:
    """totals[group]: each entry gets its group's number."""
    usual = totals.dim() != 1 or group.shape[0] < SMALL or totals.dtype not in _WIDE or not usable(totals)
    if usual or (p := plan(totals.dtype, 1)) is None:
        return totals.index_select(0, group)
    from gradmend.sparse.kernels import compiled_segments

    group, totals = places(group), flat(totals)
    out = empty((group.shape[0],), totals.dtype)
    where = (group.data_ptr(), totals.data_ptr(), out.data_ptr())
    run(compiled_segments.gather(p.tag), _COST * group.shape[0], *where, group.shape[0])
    return out


def segment_mean(crow: Tensor, values: Tensor) -> Tensor:
    """The mean of each row's entries; 0 for an empty one."""
    if (found := _plan(values)) is None:
        return plain.segment_mean(crow, values)
    return _reduce(crow, values, "mean", 0, *found)


def segment_max(crow: Tensor, values: Tensor, empty: float = 0) -> Tensor:
    """The largest entry of each row; `empty` for an empty one. NaN wins."""
    if (found := _plan(values)) is None:
        return plain.segment_max(crow, values, empty)
    return _reduce(crow, values, "max", empty, *found)


def segment_min(crow: Tensor, values: Tensor, empty: float = 0) -> Tensor:
    """The smallest entry of each row; `empty` for an empty one. NaN wins."""
    if (found := _plan(values)) is None:
        return plain.segment_min(crow, values, empty)
    return _reduce(crow, values, "min", empty, *found)


def segment_prod(crow: Tensor, values: Tensor) -> Tensor:
    """The product of each row's entries; 1 for an empty one."""
    if (found := _plan(values)) is None:
        return plain.segment_prod(crow, values)
    return _reduce(crow, values, "prod", 1, *found)


def segment_logsumexp(crow: Tensor, values: Tensor) -> Tensor:
    """log(sum(exp)) of each row's entries; -inf for an empty one."""
    x = values.to(plain.wide(values.dtype))
    if (found := _plan(x)) is None:
        return plain.segment_logsumexp(crow, x).to(values.dtype)
    x = flat(x)
    top = _reduce(crow, x, "max", 0, *found)
    top.masked_fill_(top.isinf(), 0)
    shifted = _spread(crow, x, top, empty(tuple(x.shape), x.dtype), "sub", *found).exp_()
    return _reduce(crow, shifted, "sum", 0, *found).log_().add_(top).to(values.dtype)


def segment_softmax(crow: Tensor, values: Tensor) -> Tensor:
    """exp(values), normalised to 1 in each row."""
    x = values.to(plain.wide(values.dtype))
    if (found := _plan(x)) is None:
        return plain.segment_softmax(crow, x).to(values.dtype)
    x = flat(x)
    out = empty(tuple(x.shape), x.dtype)
    _spread(crow, x, _reduce(crow, x, "max", 0, *found), out, "sub", *found).exp_()
    return _spread(crow, out, _reduce(crow, out, "sum", 0, *found), out, "div", *found).to(values.dtype)


def segment_log_softmax(crow: Tensor, values: Tensor) -> Tensor:
    """The logarithm of segment_softmax, without its underflow."""
    x = values.to(plain.wide(values.dtype))
    if (found := _plan(x)) is None:
        return plain.segment_log_softmax(crow, x).to(values.dtype)
    x = flat(x)
    out = empty(tuple(x.shape), x.dtype)
    _spread(crow, x, _reduce(crow, x, "max", 0, *found), out, "sub", *found)
    total = _reduce(crow, out.exp(), "sum", 0, *found).log_()
    return _spread(crow, out, total, out, "sub", *found).to(values.dtype)


def _softmax_backward(crow: Tensor, p: Tensor, grad: Tensor, log: bool, how: Plan, d: int) -> Tensor:
    from gradmend.sparse.kernels import compiled_segments

    crow, p, grad = places(crow), flat(p), flat(grad)
    out = empty(tuple(p.shape), p.dtype)
    kernel = compiled_segments.softmax_backward(how.tag, how.width, how.exact, log)
    where = (crow.data_ptr(), p.data_ptr(), grad.data_ptr(), out.data_ptr())
    run(kernel, _COST * p.numel(), *where, crow.numel() - 1, d)
    return out


def segment_softmax_backward(crow: Tensor, out: Tensor, grad: Tensor) -> Tensor:
    """The gradient with respect to values, from the softmax `out` and its gradient."""
    if (found := _plan(out, grad)) is None:
        return plain.segment_softmax_backward(crow, out, grad)
    return _softmax_backward(crow, out, grad, False, *found)


def segment_log_softmax_backward(crow: Tensor, out: Tensor, grad: Tensor) -> Tensor:
    """The gradient with respect to values, from the log-softmax `out` and its gradient."""
    if (found := _plan(out, grad)) is None:
        return plain.segment_log_softmax_backward(crow, out, grad)
    return _softmax_backward(crow, out.exp(), grad, True, *found)
