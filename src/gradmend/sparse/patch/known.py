"""What we know of a torch sparse tensor: its pattern, and the tensor whose memory its values are.

Kept beside the tensors, weakly: nothing is stored on them, so that pickle, deepcopy and `__dict__` see nothing.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gradmend.sparse.kernels import rows_of
from gradmend.sparse.pattern import Pattern

LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


class Known:
    """The pattern of one tensor, in the order in which it holds its values."""

    def __init__(self, pattern: Pattern, values: Tensor | None = None, ours: bool = False) -> None:
        self.pattern = pattern
        self.values = values  # detached, but with the version counter of the user's own tensor
        self.ours = ours  # built while patched: its backward is ours, to any order
        self._entries: weakref.ref[Tensor] | None = None

    @property
    def entries(self) -> Tensor | None:
        """The values as part of the graph, if someone still holds them: uses of one tensor share them."""
        return None if self._entries is None else self._entries()

    @entries.setter
    def entries(self, values: Tensor) -> None:
        # Weakly: a leaf's graph holds the leaf, and a strong reference would close a circle through C++.
        self._entries = weakref.ref(values)


_known: Any = WeakTensorKeyDictionary()
_patterns: Any = WeakTensorKeyDictionary()  # of an index tensor, so that rebuilding each step sorts once


def supported(A: Any) -> bool:
    if not isinstance(A, Tensor) or A.layout not in LAYOUTS:
        return False
    return A.layout == torch.sparse_coo or A.dim() - A.dense_dim() == 2  # no batches of compressed ones


def raw(A: Tensor) -> Tensor:
    """The values as they are stored, without a graph."""
    return A._values() if A.layout == torch.sparse_coo else A.detach().values()


def pattern_of(index: Tensor, other: Tensor | None, size: tuple[int, ...], layout: torch.layout) -> Pattern:
    """From COO indices, or from column (row) indices and the pointers `other`; sorted once per index tensor."""
    pointers = None if other is None else (other.data_ptr(), other._version)
    stamp = (index._version, pointers, size, layout)
    found = _patterns.get(index)
    if found is not None and found[0] == stamp:
        return found[1]
    places = index.detach().to(torch.int64)
    if other is not None:
        along = rows_of(other.to(torch.int64), index.numel())
        places = torch.stack([along, places] if layout == torch.sparse_csr else [places, along])
    elif places.data_ptr() == index.data_ptr():
        places = places.clone()  # ours to keep, whatever the user writes into theirs
    made = Pattern(places, size)
    # The pointers stay alive with their stamp, or another tensor could come to lie at their address.
    _patterns[index] = (stamp, made, None if other is None else other.detach())
    return made


def remember(A: Tensor, known: Known) -> Tensor:
    _known[A] = known
    return A


def know(A: Tensor) -> Known:
    """What is known of A, looked up or worked out."""
    found = _known.get(A)
    if found is not None and found.pattern.given == A._nnz():
        return found
    size = tuple(A.shape[: A.sparse_dim()]) if A.layout == torch.sparse_coo else tuple(A.shape[:2])
    with torch.no_grad():
        if A.layout == torch.sparse_coo:
            pattern = pattern_of(A._indices(), None, size, A.layout)
        elif A.layout == torch.sparse_csr:
            pattern = pattern_of(A.col_indices(), A.crow_indices(), size, A.layout)
        else:
            pattern = pattern_of(A.row_indices(), A.ccol_indices(), size, A.layout)
    made = Known(pattern, _given_values(A))
    remember(A, made)
    return made


def _given_values(A: Tensor) -> Tensor | None:
    """The user's values tensor of a constructor's direct result: its counter sees writes that A's does not."""
    node = A.grad_fn
    if node is None:
        return None
    values = getattr(node, "_saved_values", None)
    if values is None:
        # COO keeps no reference, but a leaf stands behind the edge its gradient would take.
        values = next((getattr(n, "variable", None) for n, _ in node.next_functions if n is not None), None)
    stored = raw(A)
    if not isinstance(values, Tensor) or values.layout != torch.strided:
        return None
    if values.data_ptr() != stored.data_ptr() or values.shape != stored.shape or values.dtype != stored.dtype:
        return None
    return values.detach()
