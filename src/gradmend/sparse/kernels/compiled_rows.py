"""Row-wise optimizer steps in numba: one pass sums a row's gradients, updates its state and its parameters."""

from __future__ import annotations

from functools import cache

from gradmend.sparse.kernels.compiled import Kernel, boundary, kept_on_disk
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
def adam(tag: str, width: int, exact: bool) -> Kernel:
    """`rows` are the rows touched; those of G that belong to row i are order[crow[i]:crow[i + 1]]."""

    @kept_on_disk
    def kernel(  # type: ignore[no-untyped-def]
        crow, rows, order, G, P, M, V, beta1, beta2, eps, size, keep, n, d, part, parts
    ):
        b1, r1 = fill(tag, width, beta1), fill(tag, width, 1 - beta1)
        b2, r2 = fill(tag, width, beta2), fill(tag, width, 1 - beta2)
        small, step, kept = fill(tag, width, eps), fill(tag, width, size), fill(tag, width, keep)
        for i in range(boundary(crow, n, part, parts), boundary(crow, n, part + 1, parts)):
            at = get("i64", rows, i) * d
            if i + _AHEAD < n:
                far = get("i64", rows, i + _AHEAD) * d
                prefetch(tag, width, P, far)
                prefetch(tag, width, M, far)
                prefetch(tag, width, V, far)
            for j in range(0, d, width):
                g = fill(tag, width, 0.0)
                for e in range(get("i64", crow, i), get("i64", crow, i + 1)):
                    g = add(g, load(tag, width, exact, G, get("i64", order, e) * d + j, d - j))
                m = fma_lanes(g, r1, mul(load(tag, width, exact, M, at + j, d - j), b1))
                v = fma_lanes(mul(g, g), r2, mul(load(tag, width, exact, V, at + j, d - j), b2))
                p = mul(load(tag, width, exact, P, at + j, d - j), kept)
                p = sub(p, mul(step, div(m, add(sqrt(v), small))))
                store(tag, width, exact, m, M, at + j, d - j)
                store(tag, width, exact, v, V, at + j, d - j)
                store(tag, width, exact, p, P, at + j, d - j)

    return kernel


@cache
def adagrad(tag: str, width: int, exact: bool) -> Kernel:
    @kept_on_disk
    def kernel(crow, rows, order, G, P, S, eps, size, keep, n, d, part, parts):  # type: ignore[no-untyped-def]
        small, step, kept = fill(tag, width, eps), fill(tag, width, size), fill(tag, width, keep)
        for i in range(boundary(crow, n, part, parts), boundary(crow, n, part + 1, parts)):
            at = get("i64", rows, i) * d
            if i + _AHEAD < n:
                far = get("i64", rows, i + _AHEAD) * d
                prefetch(tag, width, P, far)
                prefetch(tag, width, S, far)
            for j in range(0, d, width):
                g = fill(tag, width, 0.0)
                for e in range(get("i64", crow, i), get("i64", crow, i + 1)):
                    g = add(g, load(tag, width, exact, G, get("i64", order, e) * d + j, d - j))
                s = fma_lanes(g, g, load(tag, width, exact, S, at + j, d - j))
                p = mul(load(tag, width, exact, P, at + j, d - j), kept)
                p = sub(p, mul(step, div(g, add(sqrt(s), small))))
                store(tag, width, exact, s, S, at + j, d - j)
                store(tag, width, exact, p, P, at + j, d - j)

    return kernel
