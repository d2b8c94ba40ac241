"""Two ascending lists of numbers walked together in numba, without branches: which comes next can't be guessed."""

from __future__ import annotations

from gradmend.sparse.kernels.compiled import kept_on_disk


@kept_on_disk
def union(a, b, first, second, index, at_a, at_b):  # type: ignore[no-untyped-def]
    """Fills the places of the union [dims, n] from those of a and b, and where each went; returns how many there are."""
    n, m, dims = a.shape[0], b.shape[0], index.shape[0]
    i, j, k = 0, 0, 0
    while i < n and j < m:
        x, y = a[i], b[j]
        for d in range(dims):
            index[d, k] = first[d, i] if x <= y else second[d, j]
        at_a[i] = k
        at_b[j] = k
        i += x <= y
        j += y <= x
        k += 1
    while i < n:
        for d in range(dims):
            index[d, k] = first[d, i]
        at_a[i] = k
        i += 1
        k += 1
    while j < m:
        for d in range(dims):
            index[d, k] = second[d, j]
        at_b[j] = k
        j += 1
        k += 1
    return k


@kept_on_disk
def intersection(a, b, at_a, at_b):  # type: ignore[no-untyped-def]
    """Where the common numbers are in a and in b; returns how many there are. Room for one more than the shorter list."""
    n, m = a.shape[0], b.shape[0]
    i, j, k = 0, 0, 0
    while i < n and j < m:
        x, y = a[i], b[j]
        at_a[k] = i
        at_b[k] = j
        i += x <= y
        j += y <= x
        k += x == y
    return k


@kept_on_disk
def runs(first, count, which, entry):  # type: ignore[no-untyped-def]
    """Entries first[i], first[i] + 1, ... of each run i, one run after the other, and the run of each."""
    k = 0
    for i in range(first.shape[0]):
        for e in range(first[i], first[i] + count[i]):
            which[k] = i
            entry[k] = e
            k += 1
    return k
