"""The products of one column in numba: a vector's numbers lie in the cache, so that asking ahead costs more than it gives.

Both walk the rows in order. The backward adds to a vector of its own for each thread, where the wider kernels walk the
transposed pattern: of one column, looking up where each value is costs more than all else.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from gradmend.sparse.kernels.compiled import Kernel, boundary, kept_on_disk
from gradmend.sparse.kernels.lanes import get, put

_KINDS: dict[str, Any] = {"f32": np.float32, "f64": np.float64}


@cache
def spmv(tag: str) -> Kernel:
    kind = _KINDS[tag]

    @kept_on_disk
    def kernel(crow, col, values, x, ldx, out, rows, part, parts):  # type: ignore[no-untyped-def]
        for i in range(boundary(crow, rows, part, parts), boundary(crow, rows, part + 1, parts)):
            first, last = get("i64", crow, i), get("i64", crow, i + 1)
            a, b = kind(0), kind(0)  # two sums: one would wait for itself
            for e in range(first, last - 1, 2):
                a += get(tag, values, e) * get(tag, x, get("i64", col, e) * ldx)
                b += get(tag, values, e + 1) * get(tag, x, get("i64", col, e + 1) * ldx)
            if (last - first) % 2:
                a += get(tag, values, last - 1) * get(tag, x, get("i64", col, last - 1) * ldx)
            put(tag, out, i, a + b)

    return kernel


@cache
def spmv_backward(tag: str) -> Kernel:
    """`dx` holds `cols` numbers for each thread, zeros at first."""

    @kept_on_disk
    def kernel(crow, col, values, x, ldx, g, ldg, dv, dx, rows, cols, who, part, parts):  # type: ignore[no-untyped-def]
        base = who * cols
        for i in range(boundary(crow, rows, part, parts), boundary(crow, rows, part + 1, parts)):
            slope = get(tag, g, i * ldg)
            for e in range(get("i64", crow, i), get("i64", crow, i + 1)):
                c = get("i64", col, e)
                put(tag, dv, e, slope * get(tag, x, c * ldx))
                put(tag, dx, base + c, get(tag, dx, base + c) + slope * get(tag, values, e))

    return kernel


@cache
def gather_up(tag: str) -> Kernel:
    """dx[0] += dx[1] + ...: what the threads of the backward have summed."""

    @kept_on_disk
    def kernel(dx, cols, many, part, parts):  # type: ignore[no-untyped-def]
        for m in range(1, many):
            for c in range(cols * part // parts, cols * (part + 1) // parts):
                put(tag, dx, c, get(tag, dx, c) + get(tag, dx, m * cols + c))

    return kernel
