"""Convolution by a kernel map in numba: rows are gathered, multiplied by a small matrix and added up without a copy.

The pairs of offset k are ptr[k]:ptr[k + 1], input row `source[p]` and output row `target[p]`, both ascending. Four pairs
share each row of a weight that is loaded; two registers of each stay in use.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from gradmend.sparse.kernels.compiled import Kernel, Runs, inlined, kept_on_disk, tail_left
from gradmend.sparse.kernels.lanes import fma, get, load, prefetch, store

_AHEAD = 8


@inlined
def _first(target: Any, low: Any, high: Any, row: Any) -> Any:
    """The first pair of low:high with an output row of at least `row`."""
    while low < high:
        middle = (low + high) // 2
        if get("i64", target, middle) < row:
            low = middle + 1
        else:
            high = middle
    return low


@cache
def gather(tag: str, runs: Runs) -> Kernel:
    """out[target] += X[source] @ W[k]; a part is a range of output rows, and nobody else writes to them."""

    def piece(width: int, valid: int) -> Any:
        @inlined
        def four(source, target, X, W, out, p, w, c_in, j, c_out):  # type: ignore[no-untyped-def]
            s0, s1 = get("i64", source, p) * c_in, get("i64", source, p + 1) * c_in
            s2, s3 = get("i64", source, p + 2) * c_in, get("i64", source, p + 3) * c_in
            t0, t1 = get("i64", target, p) * c_out + j, get("i64", target, p + 1) * c_out + j
            t2, t3 = get("i64", target, p + 2) * c_out + j, get("i64", target, p + 3) * c_out + j
            left = c_out - j
            a0, a1 = load(tag, width, valid, out, t0, left), load(tag, width, valid, out, t1, left)
            a2, a3 = load(tag, width, valid, out, t2, left), load(tag, width, valid, out, t3, left)
            for c in range(c_in):
                row = load(tag, width, valid, W, (w + c) * c_out + j, left)
                a0 = fma(get(tag, X, s0 + c), row, a0)
                a1 = fma(get(tag, X, s1 + c), row, a1)
                a2 = fma(get(tag, X, s2 + c), row, a2)
                a3 = fma(get(tag, X, s3 + c), row, a3)
            store(tag, width, valid, a0, out, t0, left)
            store(tag, width, valid, a1, out, t1, left)
            store(tag, width, valid, a2, out, t2, left)
            store(tag, width, valid, a3, out, t3, left)

        @inlined
        def one(source, target, X, W, out, p, w, c_in, j, c_out):  # type: ignore[no-untyped-def]
            s, t, left = get("i64", source, p) * c_in, get("i64", target, p) * c_out + j, c_out - j
            acc = load(tag, width, valid, out, t, left)
            for c in range(c_in):
                acc = fma(get(tag, X, s + c), load(tag, width, valid, W, (w + c) * c_out + j, left), acc)
            store(tag, width, valid, acc, out, t, left)

        @inlined
        def walk(source, target, X, W, out, first, last, w, c_in, j, c_out):  # type: ignore[no-untyped-def]
            p = first
            while p + 4 <= last:
                if p + _AHEAD + 4 <= last:
                    for q in range(4):
                        prefetch(tag, 32, X, get("i64", source, p + _AHEAD + q) * c_in)
                four(source, target, X, W, out, p, w, c_in, j, c_out)
                p += 4
            while p < last:
                one(source, target, X, W, out, p, w, c_in, j, c_out)
                p += 1

        return walk

    width, tail, valid = runs
    whole, rest = piece(width, width if tail else valid), piece(tail or width, valid)

    @kept_on_disk
    def kernel(ptr, source, target, X, W, out, offsets, rows, c_in, c_out, part, parts):  # type: ignore[no-untyped-def]
        low, high = rows * part // parts, rows * (part + 1) // parts
        for k in range(offsets):
            begin, end = get("i64", ptr, k), get("i64", ptr, k + 1)
            first = _first(target, begin, end, low)
            last = _first(target, first, end, high)
            for j in range(0, c_out - tail_left(c_out, width, tail), width):
                whole(source, target, X, W, out, first, last, k * c_in, c_in, j, c_out)
            if tail:
                rest(source, target, X, W, out, first, last, k * c_in, c_in, c_out // width * width, c_out)

    return kernel


_ROWS = 4  # of a weight's gradient that are summed at once
_CHUNK = 128  # pairs that stay in the cache while all rows of a gradient are summed


@cache
def outer(tag: str, runs: Runs) -> Kernel:
    """dW[k] += X[source]^T G[target]; a part is one offset and a share of its pairs, and has a sum of its own."""

    def piece(width: int, valid: int) -> Any:
        @inlined
        def four(source, target, X, G, out, first, last, at, c_in, c, j, c_out):  # type: ignore[no-untyped-def]
            left = c_out - j
            o0 = (at + c) * c_out + j
            a0, a1 = load(tag, width, valid, out, o0, left), load(tag, width, valid, out, o0 + c_out, left)
            a2 = load(tag, width, valid, out, o0 + 2 * c_out, left)
            a3 = load(tag, width, valid, out, o0 + 3 * c_out, left)
            for p in range(first, last):
                s = get("i64", source, p) * c_in + c
                g = load(tag, width, valid, G, get("i64", target, p) * c_out + j, left)
                a0 = fma(get(tag, X, s), g, a0)
                a1 = fma(get(tag, X, s + 1), g, a1)
                a2 = fma(get(tag, X, s + 2), g, a2)
                a3 = fma(get(tag, X, s + 3), g, a3)
            store(tag, width, valid, a0, out, o0, left)
            store(tag, width, valid, a1, out, o0 + c_out, left)
            store(tag, width, valid, a2, out, o0 + 2 * c_out, left)
            store(tag, width, valid, a3, out, o0 + 3 * c_out, left)

        @inlined
        def one(source, target, X, G, out, first, last, at, c_in, c, j, c_out):  # type: ignore[no-untyped-def]
            left = c_out - j
            acc = load(tag, width, valid, out, (at + c) * c_out + j, left)
            for p in range(first, last):
                g = load(tag, width, valid, G, get("i64", target, p) * c_out + j, left)
                acc = fma(get(tag, X, get("i64", source, p) * c_in + c), g, acc)
            store(tag, width, valid, acc, out, (at + c) * c_out + j, left)

        @inlined
        def walk(source, target, X, G, out, first, last, at, c_in, j, c_out):  # type: ignore[no-untyped-def]
            c = 0
            while c + _ROWS <= c_in:
                four(source, target, X, G, out, first, last, at, c_in, c, j, c_out)
                c += _ROWS
            while c < c_in:
                one(source, target, X, G, out, first, last, at, c_in, c, j, c_out)
                c += 1

        return walk

    width, tail, valid = runs
    whole, rest = piece(width, width if tail else valid), piece(tail or width, valid)

    @kept_on_disk
    def kernel(ptr, source, target, X, G, out, offsets, shares, c_in, c_out, part, parts):  # type: ignore[no-untyped-def]
        # Work is offsets x shares pieces; out is [shares, offsets, c_in, c_out].
        for piece in range(offsets * shares * part // parts, offsets * shares * (part + 1) // parts):
            k, share = piece % offsets, piece // offsets
            begin, count = get("i64", ptr, k), get("i64", ptr, k + 1) - get("i64", ptr, k)
            first, end = begin + count * share // shares, begin + count * (share + 1) // shares
            at = (share * offsets + k) * c_in
            while first < end:
                last = min(first + _CHUNK, end)
                for j in range(0, c_out - tail_left(c_out, width, tail), width):
                    whole(source, target, X, G, out, first, last, at, c_in, j, c_out)
                if tail:
                    rest(source, target, X, G, out, first, last, at, c_in, c_out // width * width, c_out)
                first = last

    return kernel


@kept_on_disk
def match(keys, base, delta, source, target):  # type: ignore[no-untyped-def]
    """Which of base + delta are among keys; both ascend. Returns how many, their places are in source and target.

    Both have room for one more than base: what is written is kept or written over, without a branch to guess.
    """
    n, i, last = 0, 0, keys.shape[0]
    for o in range(base.shape[0]):
        wanted = base[o] + delta
        while i < last and keys[i] < wanted:
            i += 1
        if i == last:
            break
        source[n] = i
        target[n] = o
        n += keys[i] == wanted
    return n
