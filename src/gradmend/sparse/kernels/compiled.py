"""The matrix kernels in numba: built per element type and width on first use, then kept on disk.

Each makes one pass over the entries, holds a row of the result in registers, and asks for the rows it will gather
`_AHEAD` entries from now. A row of k elements is taken in runs of `width` lanes, and what is left over in one of `tail`
lanes, of which not all may be there (see lanes.py, `_pieces`); without a tail the one run covers k, or divides it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba

from gradmend.sparse.kernels.lanes import Decorator, dot, fill, fma, get, load, prefetch, put, store

inlined: Decorator = numba.njit(nogil=True, inline="always")
kept_on_disk: Decorator = numba.njit(nogil=True, cache=True)
Kernel = Callable[..., None]
Runs = tuple[int, int, int]  # width, tail (or 0), valid lanes of the last run
_AHEAD = 16


@inlined
def tail_left(k: Any, width: Any, tail: Any) -> Any:
    """How many of k elements are left to the tail."""
    return k % width if tail else 0


@inlined
def boundary(crow: Any, rows: Any, part: Any, parts: Any) -> Any:
    """The first row of a part, such that all parts have about as many entries."""
    if part == 0:
        return 0
    if part >= parts:
        return rows
    # Rows count as work too, or a part of empty rows would have no bounds.
    target = (get("i64", crow, rows) + rows) * part // parts
    low, high = 0, rows
    while low < high:
        middle = (low + high) // 2
        if get("i64", crow, middle) + middle < target:
            low = middle + 1
        else:
            high = middle
    return low


@cache
def spmm(tag: str, runs: Runs, permuted: bool) -> Kernel:
    def piece(width: int, valid: int) -> Any:
        @inlined
        def walk(col, perm, values, X, ldx, out, nnz, first, last, i, j, k):  # type: ignore[no-untyped-def]
            acc = fill(tag, width, 0.0)
            for e in range(first, last):
                p = e
                if permuted:
                    p = get("i64", perm, e)
                if e + _AHEAD < nnz:
                    prefetch(tag, width, X, get("i64", col, e + _AHEAD) * ldx + j)
                    if permuted:
                        prefetch(tag, 1, values, get("i64", perm, e + _AHEAD))
                x = load(tag, width, valid, X, get("i64", col, e) * ldx + j, k - j)
                acc = fma(get(tag, values, p), x, acc)
            store(tag, width, valid, acc, out, i * k + j, k - j)

        return walk

    width, tail, valid = runs
    whole, rest = piece(width, width if tail else valid), piece(tail or width, valid)

    @kept_on_disk
    def kernel(crow, col, perm, values, X, ldx, out, rows, k, part, parts):  # type: ignore[no-untyped-def]
        nnz = get("i64", crow, rows)
        for i in range(boundary(crow, rows, part, parts), boundary(crow, rows, part + 1, parts)):
            first, last = get("i64", crow, i), get("i64", crow, i + 1)
            for j in range(0, k - tail_left(k, width, tail), width):
                whole(col, perm, values, X, ldx, out, nnz, first, last, i, j, k)
            if tail:
                rest(col, perm, values, X, ldx, out, nnz, first, last, i, k // width * width, k)

    return kernel


@cache
def sddmm(tag: str, out_tag: str, runs: Runs) -> Kernel:
    def piece(width: int, valid: int) -> Any:
        @inlined
        def walk(col, A, lda, B, ldb, out, nnz, first, last, i, j, k):  # type: ignore[no-untyped-def]
            a = load(tag, width, valid, A, i * lda + j, k - j)
            for e in range(first, last):
                if e + _AHEAD < nnz:
                    prefetch(tag, width, B, get("i64", col, e + _AHEAD) * ldb + j)
                total = dot(a, load(tag, width, valid, B, get("i64", col, e) * ldb + j, k - j))
                if j > 0:
                    total += get(out_tag, out, e)
                put(out_tag, out, e, total)

        return walk

    width, tail, valid = runs
    whole, rest = piece(width, width if tail else valid), piece(tail or width, valid)

    @kept_on_disk
    def kernel(crow, col, A, lda, B, ldb, out, rows, k, part, parts):  # type: ignore[no-untyped-def]
        nnz = get("i64", crow, rows)
        for i in range(boundary(crow, rows, part, parts), boundary(crow, rows, part + 1, parts)):
            first, last = get("i64", crow, i), get("i64", crow, i + 1)
            for j in range(0, k - tail_left(k, width, tail), width):
                whole(col, A, lda, B, ldb, out, nnz, first, last, i, j, k)
            if tail:
                rest(col, A, lda, B, ldb, out, nnz, first, last, i, k // width * width, k)

    return kernel


@cache
def spmm_backward(tag: str, out_tag: str, runs: Runs) -> Kernel:
    """Both gradients gather the same rows of `grad` when one walks the transposed pattern: read them once."""

    def piece(width: int, valid: int) -> Any:
        @inlined
        def walk(row, perm, values, X, ldx, G, ldg, dv, dX, nnz, first, last, i, j, k):  # type: ignore[no-untyped-def]
            acc = fill(tag, width, 0.0)
            x = load(tag, width, valid, X, i * ldx + j, k - j)
            for e in range(first, last):
                if e + _AHEAD < nnz:
                    q = get("i64", perm, e + _AHEAD)
                    prefetch(tag, width, G, get("i64", row, e + _AHEAD) * ldg + j)
                    prefetch(tag, 1, values, q)
                    prefetch(out_tag, 1, dv, q)
                p = get("i64", perm, e)
                g = load(tag, width, valid, G, get("i64", row, e) * ldg + j, k - j)
                acc = fma(get(tag, values, p), g, acc)
                total = dot(x, g)
                if j > 0:
                    total += get(out_tag, dv, p)
                put(out_tag, dv, p, total)
            store(tag, width, valid, acc, dX, i * k + j, k - j)

        return walk

    width, tail, valid = runs
    whole, rest = piece(width, width if tail else valid), piece(tail or width, valid)

    @kept_on_disk
    def kernel(crow, row, perm, values, X, ldx, G, ldg, dv, dX, rows, k, part, parts):  # type: ignore[no-untyped-def]
        nnz = get("i64", crow, rows)
        for i in range(boundary(crow, rows, part, parts), boundary(crow, rows, part + 1, parts)):
            first, last = get("i64", crow, i), get("i64", crow, i + 1)
            for j in range(0, k - tail_left(k, width, tail), width):
                whole(row, perm, values, X, ldx, G, ldg, dv, dX, nnz, first, last, i, j, k)
            if tail:
                rest(row, perm, values, X, ldx, G, ldg, dv, dX, nnz, first, last, i, k // width * width, k)

    return kernel
