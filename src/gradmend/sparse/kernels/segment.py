"""Reductions over the entries of each row, and softmax: compiled where it pays, torch's ops everywhere else.

`values` is [nnz] or [nnz, ...]; each trailing element is reduced on its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradmend.sparse.errors import SparseError
from gradmend.sparse.kernels import checks, plain
from gradmend.sparse.kernels.checks import address, operand, same_device
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


def _rows(crow: Tensor, values: Tensor, known: bool) -> None:
    """`crow` splits values into rows: known from a validated pattern, or looked at here."""
    if crow.dim() != 1 or crow.shape[0] == 0 or values.dim() == 0:
        checks.pointers(crow, -1)
    same_device(crow, values)
    if not known:
        checks.pointers(crow, values.shape[0])
    elif crow.is_cpu and int(crow[-1]) != values.shape[0]:  # elsewhere the host would wait for the number
        raise SparseError(f"there are {values.shape[0]} values for a pattern of {int(crow[-1])} entries.")


def _reduce(crow: Tensor, values: Tensor, how: str, fill: float, p: Plan, d: int) -> Tensor:
    from gradmend.sparse.kernels import compiled_segments

    crow, values, n = places(crow), flat(values), crow.numel() - 1
    out = empty((n, *values.shape[1:]), values.dtype)
    kernel = compiled_segments.reduce(p.tag, p.runs, how)
    where = (
        address(crow, (n + 1,), torch.int64),
        address(values.view(-1), (values.shape[0] * d,), values.dtype),
        address(out.view(-1), (n * d,), values.dtype),
    )
    run(kernel, _COST * values.numel(), *where, float(fill), n, d)
    return out


def _spread(crow: Tensor, values: Tensor, totals: Tensor, out: Tensor, how: str, p: Plan, d: int) -> Tensor:
    from gradmend.sparse.kernels import compiled_segments

    crow = places(crow)
    kernel = compiled_segments.spread(p.tag, p.runs, how)
    n, size = crow.numel() - 1, values.shape[0] * d
    where = (
        address(crow, (n + 1,), torch.int64),
        address(values.view(-1), (size,), values.dtype),
        address(totals.view(-1), (n * d,), values.dtype),
        address(out.view(-1), (size,), values.dtype),
    )
    run(kernel, _COST * values.numel(), *where, n, d)
    return out


def segment_sum(crow: Tensor, values: Tensor, known: bool = False) -> Tensor:
    """The sum of each row; 0 for an empty one."""
    _rows(crow, values, known)
    if (found := _plan(values)) is None:
        return plain.segment_sum(crow, values)
    return _reduce(crow, values, "sum", 0, *found)


def scatter_sum(group: Tensor, values: Tensor, groups: int, known: bool = False) -> Tensor:
    """The sum of each group, `group` [nnz] saying to which an entry belongs, in whatever order."""
    operand("the groups", group, values.shape[0] if values.dim() else None)
    same_device(group, values)
    if not known:
        checks.places("groups", group, values.shape[0], groups)
    if values.dim() != 1 or (found := _plan(values)) is None or values.dtype not in _WIDE:
        return plain.scatter_sum(group, values, groups)
    from gradmend.sparse.kernels import compiled_segments

    group, values = places(group), flat(values)
    out = values.new_zeros(groups)
    kernel = compiled_segments.scatter(found[0].tag)
    n = values.shape[0]
    kernel(
        address(group, (n,), torch.int64),
        address(values, (n,), values.dtype),
        address(out, (groups,), values.dtype),
        n,
    )
    return out


def gather(group: Tensor, totals: Tensor, groups: int | None = None) -> Tensor:
    """totals[group]: each entry gets its group's number."""
    operand("the groups", group, None)
    if groups is None:
        checks.places("groups", group, group.shape[0], totals.shape[0])
    elif totals.shape[0] != groups:
        raise SparseError(f"there are {totals.shape[0]} totals for {groups} groups.")
    usual = totals.dim() != 1 or group.shape[0] < SMALL or totals.dtype not in _WIDE or not usable(totals)
    if usual or (p := plan(totals.dtype, 1)) is None:
        return totals.index_select(0, group)
    from gradmend.sparse.kernels import compiled_segments

    group, totals = places(group), flat(totals)
    out = empty((group.shape[0],), totals.dtype)
    n = group.shape[0]
    where = (
        address(group, (n,), torch.int64),
        address(totals, (totals.shape[0],), totals.dtype),
        address(out, (n,), totals.dtype),
    )
    run(compiled_segments.gather(p.tag), _COST * group.shape[0], *where, group.shape[0])
    return out


def segment_mean(crow: Tensor, values: Tensor, known: bool = False) -> Tensor:
    """The mean of each row's entries; 0 for an empty one."""
    _rows(crow, values, known)
    if (found := _plan(values)) is None:
        return plain.segment_mean(crow, values)
    return _reduce(crow, values, "mean", 0, *found)


def segment_max(crow: Tensor, values: Tensor, empty: float = 0, known: bool = False) -> Tensor:
    """The largest entry of each row; `empty` for an empty one. NaN wins."""
    _rows(crow, values, known)
    if (found := _plan(values)) is None:
        return plain.segment_max(crow, values, empty)
    return _reduce(crow, values, "max", empty, *found)


def segment_min(crow: Tensor, values: Tensor, empty: float = 0, known: bool = False) -> Tensor:
    """The smallest entry of each row; `empty` for an empty one. NaN wins."""
    _rows(crow, values, known)
    if (found := _plan(values)) is None:
        return plain.segment_min(crow, values, empty)
    return _reduce(crow, values, "min", empty, *found)


def segment_prod(crow: Tensor, values: Tensor, known: bool = False) -> Tensor:
    """The product of each row's entries; 1 for an empty one."""
    _rows(crow, values, known)
    if (found := _plan(values)) is None:
        return plain.segment_prod(crow, values)
    return _reduce(crow, values, "prod", 1, *found)


def segment_logsumexp(crow: Tensor, values: Tensor, known: bool = False) -> Tensor:
    """log(sum(exp)) of each row's entries; -inf for an empty one."""
    _rows(crow, values, known)
    x = values.to(plain.wide(values.dtype))
    if (found := _plan(x)) is None:
        return plain.segment_logsumexp(crow, x).to(values.dtype)
    x = flat(x)
    top = _reduce(crow, x, "max", 0, *found)
    top.masked_fill_(top.isinf(), 0)
    shifted = _spread(crow, x, top, empty(tuple(x.shape), x.dtype), "sub", *found).exp_()
    return _reduce(crow, shifted, "sum", 0, *found).log_().add_(top).to(values.dtype)


def segment_softmax(crow: Tensor, values: Tensor, known: bool = False) -> Tensor:
    """exp(values), normalised to 1 in each row."""
    _rows(crow, values, known)
    x = values.to(plain.wide(values.dtype))
    if (found := _plan(x)) is None:
        return plain.segment_softmax(crow, x).to(values.dtype)
    x = flat(x)
    out = empty(tuple(x.shape), x.dtype)
    _spread(crow, x, _reduce(crow, x, "max", 0, *found), out, "sub", *found).exp_()
    return _spread(crow, out, _reduce(crow, out, "sum", 0, *found), out, "div", *found).to(values.dtype)


def segment_log_softmax(crow: Tensor, values: Tensor, known: bool = False) -> Tensor:
    """The logarithm of segment_softmax, without its underflow."""
    _rows(crow, values, known)
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
    kernel = compiled_segments.softmax_backward(how.tag, how.runs, log)
    n, size = crow.numel() - 1, p.shape[0] * d
    where = (
        address(crow, (n + 1,), torch.int64),
        *(address(t.view(-1), (size,), p.dtype) for t in (p, grad, out)),
    )
    run(kernel, _COST * p.numel(), *where, n, d)
    return out


def segment_softmax_backward(crow: Tensor, out: Tensor, grad: Tensor, known: bool = False) -> Tensor:
    """The gradient with respect to values, from the softmax `out` and its gradient."""
    _rows(crow, out, known)
    operand("the gradient", grad, *out.shape)
    same_device(out, grad)
    if (found := _plan(out, grad)) is None:
        return plain.segment_softmax_backward(crow, out, grad)
    return _softmax_backward(crow, out, grad, False, *found)


def segment_log_softmax_backward(crow: Tensor, out: Tensor, grad: Tensor, known: bool = False) -> Tensor:
    """The gradient with respect to values, from the log-softmax `out` and its gradient."""
    _rows(crow, out, known)
    operand("the gradient", grad, *out.shape)
    same_device(out, grad)
    if (found := _plan(out, grad)) is None:
        return plain.segment_log_softmax_backward(crow, out, grad)
    return _softmax_backward(crow, out.exp(), grad, True, *found)
