"""Row-wise optimizer steps in numba: one pass sums a row's gradients, updates its state and its parameters."""

from __future__ import annotations

from functools import cache
from typing import Any

from gradmend.sparse.kernels.compiled import Kernel, Runs, boundary, inlined, kept_on_disk, tail_left
from gradmend.sparse.kernels.lanes import (
    add,
    div,
    fill,
    fma_lanes,
    get,
    load,
    mul,
    prefetch,
    sqrt,
    store,
    sub,
)

_AHEAD = 8


@cache
def adam(tag: str, runs: Runs) -> Kernel:
    """`rows` are the rows touched; those of G that belong to row i are order[crow[i]:crow[i + 1]]."""

    def piece(width: int, valid: int) -> Any:
        @inlined
        def walk(order, G, P, M, V, beta1, beta2, eps, size, keep, first, last, at, j, d):  # type: ignore[no-untyped-def]
            g = fill(tag, width, 0.0)
            for e in range(first, last):
                g = add(g, load(tag, width, valid, G, get("i64", order, e) * d + j, d - j))
            r1, r2 = fill(tag, width, 1 - beta1), fill(tag, width, 1 - beta2)
            m = fma_lanes(g, r1, mul(load(tag, width, valid, M, at + j, d - j), fill(tag, width, beta1)))
            v = fma_lanes(
                mul(g, g), r2, mul(load(tag, width, valid, V, at + j, d - j), fill(tag, width, beta2))
            )
            p = mul(load(tag, width, valid, P, at + j, d - j), fill(tag, width, keep))
            p = sub(p, mul(fill(tag, width, size), div(m, add(sqrt(v), fill(tag, width, eps)))))
            store(tag, width, valid, m, M, at + j, d - j)
            store(tag, width, valid, v, V, at + j, d - j)
            store(tag, width, valid, p, P, at + j, d - j)

        return walk

    width, tail, valid = runs
    whole, rest = piece(width, width if tail else valid), piece(tail or width, valid)

    @kept_on_disk
    def kernel(  # type: ignore[no-untyped-def]
        crow, rows, order, G, P, M, V, beta1, beta2, eps, size, keep, n, d, part, parts
    ):
        for i in range(boundary(crow, n, part, parts), boundary(crow, n, part + 1, parts)):
            at, first, last = get("i64", rows, i) * d, get("i64", crow, i), get("i64", crow, i + 1)
            if i + _AHEAD < n:
                far = get("i64", rows, i + _AHEAD) * d
                prefetch(tag, width, P, far)
                prefetch(tag, width, M, far)
                prefetch(tag, width, V, far)
            for j in range(0, d - tail_left(d, width, tail), width):
                whole(order, G, P, M, V, beta1, beta2, eps, size, keep, first, last, at, j, d)
            if tail:
                rest(order, G, P, M, V, beta1, beta2, eps, size, keep, first, last, at, d // width * width, d)

    return kernel


@cache
def adagrad(tag: str, runs: Runs) -> Kernel:
    def piece(width: int, valid: int) -> Any:
        @inlined
        def walk(order, G, P, S, eps, size, keep, first, last, at, j, d):  # type: ignore[no-untyped-def]
            g = fill(tag, width, 0.0)
            for e in range(first, last):
                g = add(g, load(tag, width, valid, G, get("i64", order, e) * d + j, d - j))
            s = fma_lanes(g, g, load(tag, width, valid, S, at + j, d - j))
            p = mul(load(tag, width, valid, P, at + j, d - j), fill(tag, width, keep))
            p = sub(p, mul(fill(tag, width, size), div(g, add(sqrt(s), fill(tag, width, eps)))))
            store(tag, width, valid, s, S, at + j, d - j)
            store(tag, width, valid, p, P, at + j, d - j)

        return walk

    width, tail, valid = runs
    whole, rest = piece(width, width if tail else valid), piece(tail or width, valid)

    @kept_on_disk
    def kernel(crow, rows, order, G, P, S, eps, size, keep, n, d, part, parts):  # type: ignore[no-untyped-def]
        for i in range(boundary(crow, n, part, parts), boundary(crow, n, part + 1, parts)):
            at, first, last = get("i64", rows, i) * d, get("i64", crow, i), get("i64", crow, i + 1)
            if i + _AHEAD < n:
                far = get("i64", rows, i + _AHEAD) * d
                prefetch(tag, width, P, far)
                prefetch(tag, width, S, far)
            for j in range(0, d - tail_left(d, width, tail), width):
                whole(order, G, P, S, eps, size, keep, first, last, at, j, d)
            if tail:
                rest(order, G, P, S, eps, size, keep, first, last, at, d // width * width, d)

    return kernel
