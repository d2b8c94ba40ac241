"""The segment kernels in numba: reductions over the entries of each row, and what spreads them back."""

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
    maximum,
    minimum,
    mul,
    put,
    store,
    sub,
)


@cache
def reduce(tag: str, runs: Runs, how: str) -> Kernel:
    """out[i] = values of row i, summed, averaged, ...; `empty` for a row without any."""

    def piece(width: int, valid: int) -> Any:
        @inlined
        def walk(values, out, empty, first, last, i, j, d):  # type: ignore[no-untyped-def]
            if first == last:
                acc = fill(tag, width, empty)
            else:
                acc = load(tag, width, valid, values, first * d + j, d - j)
            for e in range(first + 1, last):
                x = load(tag, width, valid, values, e * d + j, d - j)
                if how == "max":
                    acc = maximum(acc, x)
                elif how == "min":
                    acc = minimum(acc, x)
                elif how == "prod":
                    acc = mul(acc, x)
                else:
                    acc = add(acc, x)
            if how == "mean" and last > first + 1:
                acc = div(acc, fill(tag, width, last - first))
            store(tag, width, valid, acc, out, i * d + j, d - j)

        return walk

    width, tail, valid = runs
    whole, rest = piece(width, width if tail else valid), piece(tail or width, valid)

    @kept_on_disk
    def kernel(crow, values, out, empty, rows, d, part, parts):  # type: ignore[no-untyped-def]
        for i in range(boundary(crow, rows, part, parts), boundary(crow, rows, part + 1, parts)):
            first, last = get("i64", crow, i), get("i64", crow, i + 1)
            for j in range(0, d - tail_left(d, width, tail), width):
                whole(values, out, empty, first, last, i, j, d)
            if tail:
                rest(values, out, empty, first, last, i, d // width * width, d)

    return kernel


@cache
def spread(tag: str, runs: Runs, how: str) -> Kernel:
    """out[e] = values[e] - totals[row of e], or divided by it; out may be values."""

    def piece(width: int, valid: int) -> Any:
        @inlined
        def walk(values, totals, out, first, last, i, j, d):  # type: ignore[no-untyped-def]
            total = load(tag, width, valid, totals, i * d + j, d - j)
            for e in range(first, last):
                x = load(tag, width, valid, values, e * d + j, d - j)
                x = sub(x, total) if how == "sub" else div(x, total)
                store(tag, width, valid, x, out, e * d + j, d - j)

        return walk

    width, tail, valid = runs
    whole, rest = piece(width, width if tail else valid), piece(tail or width, valid)

    @kept_on_disk
    def kernel(crow, values, totals, out, rows, d, part, parts):  # type: ignore[no-untyped-def]
        for i in range(boundary(crow, rows, part, parts), boundary(crow, rows, part + 1, parts)):
            first, last = get("i64", crow, i), get("i64", crow, i + 1)
            for j in range(0, d - tail_left(d, width, tail), width):
                whole(values, totals, out, first, last, i, j, d)
            if tail:
                rest(values, totals, out, first, last, i, d // width * width, d)

    return kernel


@cache
def softmax_backward(tag: str, runs: Runs, log: bool) -> Kernel:
    """p * (g - sum of p * g over the row), or, for the logarithm, g - p * sum of g. `p` is the softmax."""

    def piece(width: int, valid: int) -> Any:
        @inlined
        def walk(p, g, out, first, last, j, d):  # type: ignore[no-untyped-def]
            total = fill(tag, width, 0.0)
            for e in range(first, last):
                x = load(tag, width, valid, g, e * d + j, d - j)
                if log:
                    total = add(total, x)
                else:
                    total = fma_lanes(x, load(tag, width, valid, p, e * d + j, d - j), total)
            for e in range(first, last):
                x = load(tag, width, valid, g, e * d + j, d - j)
                y = load(tag, width, valid, p, e * d + j, d - j)
                x = sub(x, mul(y, total)) if log else mul(y, sub(x, total))
                store(tag, width, valid, x, out, e * d + j, d - j)

        return walk

    width, tail, valid = runs
    whole, rest = piece(width, width if tail else valid), piece(tail or width, valid)

    @kept_on_disk
    def kernel(crow, p, g, out, rows, d, part, parts):  # type: ignore[no-untyped-def]
        for i in range(boundary(crow, rows, part, parts), boundary(crow, rows, part + 1, parts)):
            first, last = get("i64", crow, i), get("i64", crow, i + 1)
            for j in range(0, d - tail_left(d, width, tail), width):
                whole(p, g, out, first, last, j, d)
            if tail:
                rest(p, g, out, first, last, d // width * width, d)

    return kernel


@cache
def scatter(tag: str) -> Kernel:
    """totals[group of e] += values[e], in one part: its time is that of waiting for memory, not for arithmetic."""

    @kept_on_disk
    def kernel(group, values, totals, n):  # type: ignore[no-untyped-def]
        for e in range(n):
            i = get("i64", group, e)
            put(tag, totals, i, get(tag, totals, i) + get(tag, values, e))

    return kernel


@cache
def gather(tag: str) -> Kernel:
    """out[e] = totals[group of e]."""

    @kept_on_disk
    def kernel(group, totals, out, n, part, parts):  # type: ignore[no-untyped-def]
        for e in range(n * part // parts, n * (part + 1) // parts):
            put(tag, out, e, get(tag, totals, get("i64", group, e)))

    return kernel
