"""What we know of a torch sparse tensor: its places, their pattern, and its values' node in the graph.

Kept beside the tensors, weakly: nothing is stored on them, so that pickle, deepcopy and `__dict__` see nothing.

Indices can be written to where no version counter sees it (numpy, `.data`, `copy_` of a leaf), so what is kept is used
only after the tensor's indices have been compared with our own copy of them, number by number.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gradmend.sparse.errors import SparseError
from gradmend.sparse.kernels import rows_of
from gradmend.sparse.kernels.compare import same_numbers
from gradmend.sparse.pattern import Pattern

LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


class Places:
    """Where a torch sparse tensor holds its values, and in which order: read from it once, in memory of our own."""

    def __init__(self, pattern: Pattern, layout: torch.layout, copies: tuple[Tensor, ...]) -> None:
        self.pattern = pattern
        self.layout = layout
        self._copies = copies

    @staticmethod
    def read(A: Tensor) -> Places:
        size, found = _size(A), indices_of(A)
        copies: tuple[Tensor, ...]
        if A.layout == torch.sparse_coo:
            pattern = Pattern(found[0], size)
            copies = (pattern._indices if pattern.is_canonical else pattern.indices(),)
        else:
            pointers, index = copies = tuple(i.to(torch.int64, copy=True) for i in found)
            along = rows_of(pointers, index.numel())
            by_row = A.layout == torch.sparse_csr
            pattern = Pattern(torch.stack([along, index] if by_row else [index, along]), size)
        return Places(pattern, A.layout, copies)

    def are_of(self, A: Tensor) -> bool:
        if A.layout != self.layout or A._nnz() != self.pattern.given or _size(A) != self.pattern.size:
            return False
        return self.are(indices_of(A))

    def are(self, found: tuple[Tensor, ...]) -> bool:
        return all(
            a.device == b.device and same_numbers(a.to(torch.int64), b)
            for a, b in zip(found, self._copies, strict=True)
        )


class Known:
    """The places of one tensor, and what its gradient needs."""

    def __init__(self, places: Places, ours: bool = False) -> None:
        self.places = places
        self.ours = ours  # built while patched: its backward is ours, to any order
        self._entries: weakref.ref[Tensor] | None = None

    @property
    def pattern(self) -> Pattern:
        """In the order in which the tensor holds its values."""
        return self.places.pattern

    def entries(self, A: Tensor) -> Tensor | None:
        """The values as part of the graph, if someone still holds them: uses of one tensor share them.

        They are A's memory under another name. After `A.data =`, or a write that gave A another node, they are not."""
        found = None if self._entries is None else self._entries()
        if found is None or found.grad_fn is None or not same_memory(found, raw(A)):
            return None
        node = found.grad_fn.next_functions[0][0]
        behind = getattr(node, "variable", None) is A if A.is_leaf else node is A.grad_fn
        return found if behind else None

    def keep(self, entries: Tensor) -> None:
        # Weakly: a leaf's graph holds the leaf, and a strong reference would close a circle through C++.
        self._entries = weakref.ref(entries)


_known: Any = WeakTensorKeyDictionary()
_places: Any = WeakTensorKeyDictionary()  # of an index tensor, so that rebuilding each step sorts once


def supported(A: Any) -> bool:
    if not isinstance(A, Tensor) or A.layout not in LAYOUTS:
        return False
    if A.layout == torch.sparse_coo:
        return A.sparse_dim() > 0
    return A.dim() - A.dense_dim() == 2  # no batches of compressed ones


def raw(A: Tensor) -> Tensor:
    """The values as they are stored, without a graph."""
    return A._values() if A.layout == torch.sparse_coo else A.detach().values()


def same_memory(a: Tensor, b: Tensor) -> bool:
    return (
        a.data_ptr() == b.data_ptr()
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.dtype == b.dtype
        and a.device == b.device
    )


def indices_of(A: Tensor) -> tuple[Tensor, ...]:
    """A's own index tensors, as they lie in memory."""
    with torch.no_grad():
        if A.layout == torch.sparse_coo:
            return (A._indices(),)
        if A.layout == torch.sparse_csr:
            return A.crow_indices(), A.col_indices()
        return A.ccol_indices(), A.row_indices()


def _size(A: Tensor) -> tuple[int, ...]:
    return tuple(A.shape[: A.sparse_dim() if A.layout == torch.sparse_coo else 2])


def places_of(A: Tensor, index: Tensor) -> Places:
    """A's places, made from this index tensor: sorted once for as long as it holds the same."""
    found: Places | None = _places.get(index)
    if found is None or not found.are_of(A):
        found = _places[index] = Places.read(A)
    return found


def remember(A: Tensor, known: Known) -> Tensor:
    _known[A] = known
    return A


def know(A: Tensor) -> Known:
    """What is known of A, looked up or worked out."""
    found: Known | None = _known.get(A)
    same = found is not None and found.places.are_of(A)
    if found is not None and found.ours:
        if getattr(A.grad_fn, "known", None) is not found:
            found = Known(found.places)  # written to within the graph since: the node is torch's now
        elif not same:
            raise moved()
    if found is None or not same:
        found = Known(Places.read(A))
    remember(A, found)
    return found


def moved() -> SparseError:
    return SparseError(
        "the indices of a sparse tensor were changed after it was built, so there is no telling which of its values "
        "a gradient belongs to: build the tensor anew from the new indices."
    )


def saved_values(node: Any) -> Tensor | None:
    """What torch's compressed constructor keeps; nothing if it was written to since, which torch tells in backward."""
    try:
        return getattr(node, "_saved_values", None)
    except RuntimeError:
        return None
