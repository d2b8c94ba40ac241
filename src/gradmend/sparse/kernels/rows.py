"""Optimizer steps on the rows that a COO gradient names: compiled where it pays, torch's ops everywhere else.

All tensors but the gradient are changed in place; each call tells autograd so.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from gradmend.sparse.kernels import checks
from gradmend.sparse.kernels.checks import address, operand, same_device
from gradmend.sparse.kernels.gate import SMALL, Plan, flat, plan, usable
from gradmend.sparse.kernels.team import run

_COST = 4


def _compiled(grad: Tensor, *state: Tensor) -> tuple[Plan, int] | None:
    g = grad._values()
    param = state[0]
    for t in (grad, *state):
        operand("the gradient or the optimizer's state", t, *param.shape)
    same_device(grad, *state)
    operand("the gradient's indices", grad._indices(), 1, g.shape[0])
    operand("the gradient's values", g, None, *param.shape[1:])
    checks.places("rows of the gradient", grad._indices()[0], g.shape[0], param.shape[0])
    if g.numel() < max(SMALL, 1) or not usable(g, *state) or not all(t.is_contiguous() for t in state):
        return None
    d = g.numel() // g.shape[0]
    if g.dtype not in (torch.float32, torch.float64) or (p := plan(g.dtype, d)) is None:
        return None
    return p, d


def grouped(grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(crow, rows, order): the rows named, each once, and where their gradients are among the values."""
    index = grad._indices()[0].contiguous()
    nnz = index.shape[0]
    if grad.is_coalesced():
        return torch.arange(nnz + 1), index, torch.arange(nnz)
    index, order = torch.sort(index)
    rows, counts = torch.unique_consecutive(index, return_counts=True)
    crow = torch.zeros(rows.shape[0] + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=crow[1:])
    return crow, rows, order


def _indices(crow: Tensor, rows: Tensor, order: Tensor, g: Tensor) -> tuple[int, ...]:
    n = rows.shape[0]
    return (
        address(crow, (n + 1,), torch.int64),
        address(rows, (n,), torch.int64),
        address(order, (g.shape[0],), torch.int64),
        address(g, tuple(g.shape), g.dtype),
    )


def adam(
    param: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    size: float,
    keep: float,
) -> None:
    """`size` is the step with its bias corrections; `keep` what weight decay leaves of the parameters."""
    found = _compiled(grad, param, mean, square)
    if found is None:
        grad = grad.coalesce()
        rows, g = grad.indices()[0], grad.values()
        m = mean.index_select(0, rows).lerp_(g, 1 - beta1)
        v = square.index_select(0, rows).mul_(beta2).addcmul_(g, g, value=1 - beta2)
        p = param.index_select(0, rows).mul_(keep).addcdiv_(m, v.sqrt().add_(eps), value=-size)
        for whole, part in ((mean, m), (square, v), (param, p)):
            whole.index_copy_(0, rows, part)
        return
    from gradmend.sparse.kernels import compiled_rows

    (how, d), g = found, flat(grad._values())
    crow, rows, order = grouped(grad)
    kernel = compiled_rows.adam(how.tag, how.runs)
    where = (
        *_indices(crow, rows, order, g),
        *(address(t, tuple(param.shape), g.dtype) for t in (param, mean, square)),
    )
    run(
        kernel,
        _COST * g.numel(),
        *where,
        beta1,
        beta2,
        float(eps),
        float(size),
        float(keep),
        rows.shape[0],
        d,
    )
    for t in (param, mean, square):
        increment_version(t)


def adagrad(param: Tensor, grad: Tensor, total: Tensor, *, eps: float, size: float, keep: float) -> None:
    found = _compiled(grad, param, total)
    if found is None:
        grad = grad.coalesce()
        rows, g = grad.indices()[0], grad.values()
        s = total.index_select(0, rows).addcmul_(g, g)
        p = param.index_select(0, rows).mul_(keep).addcdiv_(g, s.sqrt().add_(eps), value=-size)
        total.index_copy_(0, rows, s)
        param.index_copy_(0, rows, p)
        return
    from gradmend.sparse.kernels import compiled_rows

    (how, d), g = found, flat(grad._values())
    crow, rows, order = grouped(grad)
    kernel = compiled_rows.adagrad(how.tag, how.runs)
    where = (
        *_indices(crow, rows, order, g),
        *(address(t, tuple(param.shape), g.dtype) for t in (param, total)),
    )
    run(kernel, _COST * g.numel(), *where, float(eps), float(size), float(keep), rows.shape[0], d)
    for t in (param, total):
        increment_version(t)
