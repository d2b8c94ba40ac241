"""Sparse @ sparse in numba, a row of the product at a time (Gustavson).

A row's accumulator is the row of the result itself: `at[j]` says where in it column j is kept. That is a number per
column, so callers hand in columns numbered by those that occur, and `at` is no longer than the entries are many.

Entry e of A meets the entries first[e] to last[e] of B. `work` [rows + 1] counts these pairs, so that parts are alike.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gradmend.sparse.kernels.compiled import kept_on_disk
from gradmend.sparse.kernels.lanes import Decorator, lowest_bit

_FEW = 24  # columns of a row that are sorted as they come

inlined: Decorator = numba.njit(nogil=True, inline="always")


@inlined
def _share(work: Any, part: Any, parts: Any) -> Any:
    """The rows of one part, [low, high)."""
    rows = work.shape[0] - 1
    total = work[rows] + rows
    bounds = np.empty(2, np.int64)
    for side in range(2):
        target = total * (part + side) // parts
        low, high = 0, rows
        while low < high:
            middle = (low + high) // 2
            if work[middle] + middle < target:
                low = middle + 1
            else:
                high = middle
        bounds[side] = low
    if part + 1 == parts:
        bounds[1] = rows
    return bounds[0], bounds[1]


@kept_on_disk
def count(work, ptr, first, last, col, columns, found, part, parts):  # type: ignore[no-untyped-def]
    """found[i]: how many different columns row i of the product has."""
    low, high = _share(work, part, parts)
    seen = np.full(columns, -1, np.int64)
    for i in range(low, high):
        n = 0
        for e in range(ptr[i], ptr[i + 1]):
            for f in range(first[e], last[e]):
                j = col[f]
                if seen[j] != i:
                    seen[j] = i
                    n += 1
        found[i] = n


@kept_on_disk
def fill(work, ptr, first, last, col, columns, ptr_out, row_out, col_out, part, parts):  # type: ignore[no-untyped-def]
    """row_out, col_out: the places of the product, ascending.

    A bit per column, and a bit per word of those: reading off the bits of a long row takes a tenth of sorting it.
    """
    low, high = _share(work, part, parts)
    one = np.uint64(1)
    bits = np.zeros((columns + 63) >> 6, np.uint64)
    words = np.zeros((columns + 4095) >> 12, np.uint64)
    for i in range(low, high):
        start, stop = ptr_out[i], ptr_out[i + 1]
        row_out[start:stop] = i
        few = stop - start <= _FEW
        n = start
        for e in range(ptr[i], ptr[i + 1]):
            for f in range(first[e], last[e]):
                j = col[f]
                word, bit = j >> 6, one << np.uint64(j & 63)
                if bits[word] & bit:
                    continue
                bits[word] |= bit
                if few:
                    p = n
                    while p > start and col_out[p - 1] > j:
                        col_out[p] = col_out[p - 1]
                        p -= 1
                    col_out[p] = j
                    n += 1
                else:
                    words[word >> 6] |= one << np.uint64(word & 63)
        if few:
            for p in range(start, stop):
                bits[col_out[p] >> 6] = 0
            continue
        for w in range(words.shape[0]):
            left = words[w]
            words[w] = 0
            while left:
                word = (w << 6) + lowest_bit(left)
                left &= left - one
                row = bits[word]
                bits[word] = 0
                while row:
                    col_out[n] = (word << 6) + lowest_bit(row)
                    row &= row - one
                    n += 1


@kept_on_disk
def multiply(work, ptr, first, last, col, columns, ptr_out, col_out, a, b, out, part, parts):  # type: ignore[no-untyped-def]
    """out += a * b over all pairs; out comes as zeros."""
    low, high = _share(work, part, parts)
    at = np.empty(columns, np.int64)
    for i in range(low, high):
        for p in range(ptr_out[i], ptr_out[i + 1]):
            at[col_out[p]] = p
        for e in range(ptr[i], ptr[i + 1]):
            x = a[e]
            for f in range(first[e], last[e]):
                out[at[col[f]]] += x * b[f]


@kept_on_disk
def left(work, ptr, first, last, col, columns, ptr_out, col_out, b, g, d_a, part, parts):  # type: ignore[no-untyped-def]
    """d_a[e]: the sum of b * g over the pairs of entry e."""
    low, high = _share(work, part, parts)
    at = np.empty(columns, np.int64)
    for i in range(low, high):
        for p in range(ptr_out[i], ptr_out[i + 1]):
            at[col_out[p]] = p
        for e in range(ptr[i], ptr[i + 1]):
            total = d_a[e]
            for f in range(first[e], last[e]):
                total += b[f] * g[at[col[f]]]
            d_a[e] = total


@kept_on_disk
def right(work, ptr, first, last, col, columns, ptr_out, col_out, a, g, d_b, who, part, parts):  # type: ignore[no-untyped-def]
    """d_b[who]: a * g summed into the entries of B, each thread for itself: rows share them."""
    low, high = _share(work, part, parts)
    at = np.empty(columns, np.int64)
    mine = d_b[who]
    for i in range(low, high):
        for p in range(ptr_out[i], ptr_out[i + 1]):
            at[col_out[p]] = p
        for e in range(ptr[i], ptr[i + 1]):
            x = a[e]
            for f in range(first[e], last[e]):
                mine[f] += x * g[at[col[f]]]


@kept_on_disk
def both(work, ptr, first, last, col, columns, ptr_out, col_out, a, b, g, d_a, d_b, who, part, parts):  # type: ignore[no-untyped-def]
    """left and right in one walk."""
    low, high = _share(work, part, parts)
    at = np.empty(columns, np.int64)
    mine = d_b[who]
    for i in range(low, high):
        for p in range(ptr_out[i], ptr_out[i + 1]):
            at[col_out[p]] = p
        for e in range(ptr[i], ptr[i + 1]):
            x, total = a[e], d_a[e]
            for f in range(first[e], last[e]):
                y = g[at[col[f]]]
                total += b[f] * y
                mine[f] += x * y
            d_a[e] = total
