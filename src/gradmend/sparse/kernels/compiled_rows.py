"""Row-wise optimizer steps in numba: one pass sums a row's gradients, updates its state and its parameters.

`rows` are the rows touched, `slots` where the state of each is kept, and order[crow[i]:crow[i + 1]] the rows of G that
belong to row i. `keeps`: what weight decay leaves of row i, if that differs from row to row (`lazy`), else `keep`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from gradmend.sparse.kernels.compiled import Kernel, Runs, boundary, inlined, kept_on_disk, tail_left
from gradmend.sparse.kernels.lanes import (
    add,
    div,
    dot,
    fill,
    fma_lanes,
    get,
    load,
    mul,
    prefetch,
    put,
    sqrt,
    store,
    sub,
)

_AHEAD = 8
_LOOKED = 16  # the same for look-ups, which read one row each
Piece = Callable[[int, int], Any]


def _summed(tag: str, width: int, valid: int) -> Any:
    @inlined
    def summed(order, G, first, last, j, d):  # type: ignore[no-untyped-def]
        g = fill(tag, width, 0.0)
        for e in range(first, last):
            g = add(g, load(tag, width, valid, G, get("i64", order, e) * d + j, d - j))
        return g

    return summed


def _kernel(tag: str, runs: Runs, lazy: bool, states: int, piece: Piece) -> Kernel:
    """The walk over rows that all have in common. `a`, `b` and `c` are the method's own numbers."""
    width, tail, valid = runs
    whole, rest = piece(width, width if tail else valid), piece(tail or width, valid)

    @kept_on_disk
    def kernel(  # type: ignore[no-untyped-def]
        crow, rows, slots, order, keeps, G, P, M, V, a, b, eps, size, keep, n, d, part, parts
    ):
        entries = get("i64", crow, n)
        for i in range(boundary(crow, n, part, parts), boundary(crow, n, part + 1, parts)):
            at, first, last = get("i64", rows, i) * d, get("i64", crow, i), get("i64", crow, i + 1)
            slot = get("i64", slots, i) * d
            for e in range(first + _AHEAD, min(last + _AHEAD, entries)):
                prefetch(tag, width, G, get("i64", order, e) * d)
            left = keep
            if lazy:
                left = get("f64", keeps, i)
            if i + _AHEAD < n:
                prefetch(tag, width, P, get("i64", rows, i + _AHEAD) * d)
                far = get("i64", slots, i + _AHEAD) * d
                if states > 0:
                    prefetch(tag, width, M, far)
                if states > 1:
                    prefetch(tag, width, V, far)
            for j in range(0, d - tail_left(d, width, tail), width):
                whole(order, G, P, M, V, a, b, eps, size, left, first, last, at, slot, j, d)
            if tail:
                rest(order, G, P, M, V, a, b, eps, size, left, first, last, at, slot, d // width * width, d)

    return kernel


@cache
def adam(tag: str, runs: Runs, lazy: bool) -> Kernel:
    """a, b: the betas."""

    def piece(width: int, valid: int) -> Any:
        summed = _summed(tag, width, valid)

        @inlined
        def walk(order, G, P, M, V, a, b, eps, size, keep, first, last, at, slot, j, d):  # type: ignore[no-untyped-def]
            g = summed(order, G, first, last, j, d)
            r1, r2 = fill(tag, width, 1 - a), fill(tag, width, 1 - b)
            m = fma_lanes(g, r1, mul(load(tag, width, valid, M, slot + j, d - j), fill(tag, width, a)))
            v = fma_lanes(
                mul(g, g), r2, mul(load(tag, width, valid, V, slot + j, d - j), fill(tag, width, b))
            )
            p = mul(load(tag, width, valid, P, at + j, d - j), fill(tag, width, keep))
            p = sub(p, mul(fill(tag, width, size), div(m, add(sqrt(v), fill(tag, width, eps)))))
            store(tag, width, valid, m, M, slot + j, d - j)
            store(tag, width, valid, v, V, slot + j, d - j)
            store(tag, width, valid, p, P, at + j, d - j)

        return walk

    return _kernel(tag, runs, lazy, 2, piece)


@cache
def adagrad(tag: str, runs: Runs) -> Kernel:
    def piece(width: int, valid: int) -> Any:
        summed = _summed(tag, width, valid)

        @inlined
        def walk(order, G, P, M, V, a, b, eps, size, keep, first, last, at, slot, j, d):  # type: ignore[no-untyped-def]
            g = summed(order, G, first, last, j, d)
            s = fma_lanes(g, g, load(tag, width, valid, M, slot + j, d - j))
            p = mul(load(tag, width, valid, P, at + j, d - j), fill(tag, width, keep))
            p = sub(p, mul(fill(tag, width, size), div(g, add(sqrt(s), fill(tag, width, eps)))))
            store(tag, width, valid, s, M, slot + j, d - j)
            store(tag, width, valid, p, P, at + j, d - j)

        return walk

    return _kernel(tag, runs, False, 1, piece)


@cache
def sgd(tag: str, runs: Runs, momentum: bool, nesterov: bool) -> Kernel:
    """a: momentum; b: what dampening leaves; eps: the slot from which on state is new; keep: 1; size: the rate.

    V is 0: weight decay is part of the gradient here, as in torch.optim.SGD, and its factor comes as `keep`.
    """

    def piece(width: int, valid: int) -> Any:
        summed = _summed(tag, width, valid)

        @inlined
        def walk(order, G, P, M, V, a, b, eps, size, keep, first, last, at, slot, j, d):  # type: ignore[no-untyped-def]
            g = summed(order, G, first, last, j, d)
            p = load(tag, width, valid, P, at + j, d - j)
            g = fma_lanes(p, fill(tag, width, keep), g)
            if momentum:
                m = g
                if slot < eps * d:
                    old = load(tag, width, valid, M, slot + j, d - j)
                    m = fma_lanes(g, fill(tag, width, b), mul(old, fill(tag, width, a)))
                store(tag, width, valid, m, M, slot + j, d - j)
                if nesterov:
                    g = fma_lanes(m, fill(tag, width, a), g)
                else:
                    g = m
            store(tag, width, valid, sub(p, mul(fill(tag, width, size), g)), P, at + j, d - j)

        return walk

    return _kernel(tag, runs, False, 1 if momentum else 0, piece)


@cache
def adagrad_by_row(tag: str, runs: Runs) -> Kernel:
    """One number of state a row: the mean square of its gradient, summed over steps."""
    width, tail, valid = runs

    def square(width: int, valid: int) -> Any:
        summed = _summed(tag, width, valid)

        @inlined
        def walk(order, G, first, last, j, d):  # type: ignore[no-untyped-def]
            g = summed(order, G, first, last, j, d)
            return dot(g, g)

        return walk

    def update(width: int, valid: int) -> Any:
        summed = _summed(tag, width, valid)

        @inlined
        def walk(order, G, P, size, keep, first, last, at, j, d):  # type: ignore[no-untyped-def]
            g = summed(order, G, first, last, j, d)
            p = mul(load(tag, width, valid, P, at + j, d - j), fill(tag, width, keep))
            store(tag, width, valid, sub(p, mul(fill(tag, width, size), g)), P, at + j, d - j)

        return walk

    squares = square(width, width if tail else valid), square(tail or width, valid)
    updates = update(width, width if tail else valid), update(tail or width, valid)
    square_whole, square_rest = squares
    update_whole, update_rest = updates

    @kept_on_disk
    def kernel(  # type: ignore[no-untyped-def]
        crow, rows, slots, order, keeps, G, P, M, V, a, b, eps, size, keep, n, d, part, parts
    ):
        entries = get("i64", crow, n)
        for i in range(boundary(crow, n, part, parts), boundary(crow, n, part + 1, parts)):
            at, first, last = get("i64", rows, i) * d, get("i64", crow, i), get("i64", crow, i + 1)
            slot = get("i64", slots, i)
            for e in range(first + _AHEAD, min(last + _AHEAD, entries)):
                prefetch(tag, width, G, get("i64", order, e) * d)
            if i + _AHEAD < n:
                prefetch(tag, width, P, get("i64", rows, i + _AHEAD) * d)
                prefetch(tag, 1, M, get("i64", slots, i + _AHEAD))
            total = get(tag, M, slot)
            mean = total - total
            for j in range(0, d - tail_left(d, width, tail), width):
                mean += square_whole(order, G, first, last, j, d)
            if tail:
                mean += square_rest(order, G, first, last, d // width * width, d)
            total += mean / d
            put(tag, M, slot, total)
            step = size / (total**0.5 + eps)
            for j in range(0, d - tail_left(d, width, tail), width):
                update_whole(order, G, P, step, keep, first, last, at, j, d)
            if tail:
                update_rest(order, G, P, step, keep, first, last, at, d // width * width, d)

    return kernel


@cache
def take(tag: str, runs: Runs) -> Kernel:
    """out[i] = P[ids[i]], with the rows asked for ahead: a large table's are in no cache."""
    width, tail, valid = runs
    full = width if tail else valid
    short = tail or width

    @kept_on_disk
    def kernel(ids, P, out, n, d, part, parts):  # type: ignore[no-untyped-def]
        for i in range(n * part // parts, n * (part + 1) // parts):
            if i + _LOOKED < n:
                prefetch(tag, width, P, get("i64", ids, i + _LOOKED) * d)
            at, to = get("i64", ids, i) * d, i * d
            for j in range(0, d - tail_left(d, width, tail), width):
                store(tag, width, full, load(tag, width, full, P, at + j, d - j), out, to + j, d - j)
            if tail:
                j = d // width * width
                store(tag, short, valid, load(tag, short, valid, P, at + j, d - j), out, to + j, d - j)

    return kernel
