"""A radix sort of small whole numbers in numba: thirty times as fast as a comparison sort of as many."""

from __future__ import annotations

import numpy as np

from gradmend.sparse.kernels.compiled import kept_on_disk

# Bits of a digit at most: its counters must stay in the first-level cache.
_DIGIT = 12


@kept_on_disk
def group(index, bits, crow, rows, order):  # type: ignore[no-untyped-def]
    """Fills crow, rows and order (see grouping.py); returns how many different rows there are."""
    n = index.shape[0]
    passes = max((bits + _DIGIT - 1) // _DIGIT, 1)
    width = (bits + passes - 1) // passes
    size = 1 << width
    # A row and its place in one word: a pass moves each word once.
    here, there = np.empty(n, np.int64), np.empty(n, np.int64)
    for e in range(n):
        here[e] = (index[e] << 32) | e
    for digit in range(passes):
        shift = 32 + digit * width
        count = np.zeros(size + 1, np.int64)
        for e in range(n):
            count[((here[e] >> shift) & (size - 1)) + 1] += 1
        for i in range(size):
            count[i + 1] += count[i]
        for e in range(n):
            d = (here[e] >> shift) & (size - 1)
            there[count[d]] = here[e]
            count[d] += 1
        here, there = there, here
    found = 0
    last = np.int64(-1)
    for e in range(n):
        row = here[e] >> 32
        order[e] = here[e] & 0xFFFFFFFF
        if row != last:
            rows[found] = row
            crow[found] = e
            found += 1
            last = row
    crow[found] = n
    return found
