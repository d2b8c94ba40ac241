"""The terms of sparse @ sparse, row after row (Gustavson): gradients of both operands stay on their patterns.

Every term of the product pairs an entry of A with an entry of B and lands in an entry of C. The product and
both gradients are sums over these triples, so derivatives of any order are too. Compiled kernels walk the triples
without making them; torch's own ops, the other road, make them a few rows at a time.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.autograd.place import in_place_is_fine
from gradmend.sparse.autograd.undefined import skips_undefined
from gradmend.sparse.kernels import gustavson
from gradmend.sparse.kernels.plain import conj, wide
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.places import aside, check_size, order_of

_CHUNK = 1 << 21  # terms at a time

Triples = tuple[Tensor, Tensor, Tensor]  # entry of A, entry of B, entry of C, per term


class Plan:
    """The pattern of A @ B, and its terms. Holds tensors, not the operands' patterns, which may hold it."""

    def __init__(self, A: Pattern, B: Pattern) -> None:
        self.size = (A.size[0], B.size[1])
        check_size("A @ B", self.size)
        with aside():
            self.row, self.col = A._row, B._col
            self.first, self.count = _runs(A._col, B)
            self.total = int(self.count.sum())
            self.kept: Triples | None = None
            self.product: gustavson.Product | None = None
            local, other = A._local(), B._local()
            pairs = gustavson.Pairs(
                local.pattern._ptr,
                self.first,
                self.first + self.count,
                other.pattern._col.contiguous(),
                other.pattern.size[1],
                self.total,
            )
            if gustavson.usable(pairs):
                self.product = gustavson.product_of(pairs)
                self.pattern = _pattern(self.product, local.row_ids, other.col_ids, self.size)
            else:
                self.pattern = self._by_sorting()

    def _by_sorting(self) -> Pattern:
        if self.total <= _CHUNK:
            left, right = next(self._pairs())
            keys, slot = _unique(self._keys(left, right))
            self.kept = (left, right, slot)
        else:
            keys = _unique(torch.cat([_unique(self._keys(*pair))[0] for pair in self._pairs()]))[0]
        return Pattern._from_keys(keys, self.size)

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        device, nnz = self.row.device, self.row.shape[0]
        before = self.count.cumsum(0) - self.count
        if self.total <= _CHUNK:
            cuts = [0, nnz]
        else:
            marks = torch.arange(0, self.total, _CHUNK, device=device)
            cuts = [*torch.unique(torch.searchsorted(before, marks)).tolist(), nnz]
        for a, b in itertools.pairwise(cuts):
            left = torch.repeat_interleave(torch.arange(a, b, device=device), self.count[a:b])
            start = before[a] if a < nnz else 0
            inner = torch.arange(left.shape[0], device=device) + start
            yield left, inner + (self.first - before)[left]

    def _keys(self, left: Tensor, right: Tensor) -> Tensor:
        return self.row[left] * self.size[1] + self.col[right]

    def _fresh(self) -> Iterator[Triples]:
        for left, right in self._pairs():
            yield left, right, torch.searchsorted(self.pattern._keys(), self._keys(left, right))

    def terms(self) -> Iterator[Triples]:
        return iter((self.kept,)) if self.kept is not None else self._fresh()

    def lengths(self) -> tuple[int, int, int]:
        return self.row.shape[0], self.col.shape[0], self.pattern.nnz


def _runs(wanted: Tensor, B: Pattern) -> tuple[Tensor, Tensor]:
    """Where the entries of B begin that each wanted row has, and how many they are."""
    if B._local().row_ids is None:
        first = B._ptr[wanted]
        return first, B._ptr[wanted + 1] - first
    # By search, not by pointers: those would be as long as B's rows.
    at, wanted = B._row.contiguous(), wanted.contiguous()
    first = torch.searchsorted(at, wanted)
    return first, torch.searchsorted(at, wanted, right=True) - first


def _pattern(
    p: gustavson.Product, rows: Tensor | None, cols: Tensor | None, size: tuple[int, int]
) -> Pattern:
    """The product's places, numbered as the operands' are."""
    index = torch.from_numpy(p.index)
    if rows is not None or cols is not None:
        index = torch.stack(
            [axis if ids is None else ids[axis] for axis, ids in zip(index, (rows, cols), strict=True)]
        )
    made = Pattern._trusted(index, size)
    if rows is None:
        made._kept_ptr = torch.from_numpy(p.ptr)
    return made


def _unique(keys: Tensor) -> tuple[Tensor, Tensor]:
    """(different keys ascending, which of them each is)"""
    order = order_of(keys)
    found, at = torch.unique_consecutive(keys[order], return_inverse=True)
    return found, torch.empty_like(order).index_copy_(0, order, at)


def plan_for(A: Pattern, B: Pattern) -> Plan:
    """Worked out once for a pair of patterns: training multiplies the same two again and again."""
    if A._product is not None and A._product[0]() is B:
        plan: Plan = A._product[1]
        return plan
    plan = Plan(A, B)
    A._product = (weakref.ref(B), plan)
    return plan


def contract(x: Tensor, y: Tensor, plan: Plan, out: int) -> Tensor:
    """Of the three roles (entries of A, of B, of C), two are given and the products are summed into `out`."""
    dtype = wide(x.dtype)
    if plan.kept is not None and dtype is x.dtype:
        x_at, y_at = plan.kept[(out + 1) % 3], plan.kept[(out + 2) % 3]
        terms = x.index_select(0, x_at) * y.index_select(0, y_at)
        return terms.new_zeros(plan.lengths()[out]).index_add(0, plan.kept[out], terms)
    total = torch.zeros(plan.lengths()[out], dtype=dtype, device=x.device)
    for triple in plan.terms():
        x_at, y_at = triple[(out + 1) % 3], triple[(out + 2) % 3]
        total = total.index_add(
            0, triple[out], x.index_select(0, x_at).to(dtype) * y.index_select(0, y_at).to(dtype)
        )
    return total.to(x.dtype)


def bare(x: Tensor, y: Tensor, plan: Plan, out: int) -> Tensor:
    """The same, nobody watching: compiled where it can be. Roles from C (2) on are A (0), then B (1)."""
    if plan.product is None or not gustavson.takes(x, y):
        if (
            plan.kept is None
            or x.dtype is not y.dtype
            or wide(x.dtype) is not x.dtype
            or not in_place_is_fine()
        ):
            return contract(x, y, plan, out)
        x_at, y_at = plan.kept[(out + 1) % 3], plan.kept[(out + 2) % 3]
        terms = x.index_select(0, x_at).mul_(y.index_select(0, y_at))
        return terms.new_zeros(plan.lengths()[out]).index_add_(0, plan.kept[out], terms)
    kernel = (gustavson.left, gustavson.right, gustavson.multiply)[out]
    return kernel(plan.product, x, y)


@skips_undefined
class Contract(torch.autograd.Function):
    """Keeps operands, not terms; its derivatives are contractions of the same triples."""

    @staticmethod
    def forward(x: Tensor, y: Tensor, plan: Plan, out: int) -> Tensor:
        return bare(x, y, plan, out)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, y, ctx.plan, ctx.out = inputs
        ctx.save_for_backward(x, y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,), (x, y) = grads, ctx.saved_tensors
        d_x = d_y = None
        product = ctx.plan.product if ctx.out == 2 and in_place_is_fine() else None
        first_order = all(ctx.needs_input_grad[:2]) and not torch.is_grad_enabled()
        if product is not None and first_order and gustavson.takes(x, y, grad):
            return *gustavson.both(product, conj(x), conj(y), grad), None, None
        if ctx.needs_input_grad[0]:
            d_x = Contract.apply(conj(y), grad, ctx.plan, (ctx.out + 1) % 3)
        if ctx.needs_input_grad[1]:
            d_y = Contract.apply(grad, conj(x), ctx.plan, (ctx.out + 2) % 3)
        return d_x, d_y, None, None
