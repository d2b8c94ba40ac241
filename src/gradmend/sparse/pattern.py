"""Where the entries are: an immutable, validated, sorted set of places, with its CSR views cached."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.errors import PatternError
from gradmend.sparse.places import (
    Size,
    as_indices,
    as_size,
    aside,
    bare,
    check_bounds,
    check_size,
    linear,
    order_of,
    unlinear,
)
from gradmend.sparse.views import Views


class Pattern(Views):
    """The places of a sparse tensor's entries.

    >>> p = Pattern([[0, 1, 1], [2, 0, 2]], (2, 3))
    >>> p.nnz, p.density
    (3, 0.5)

    Places may come unsorted and more than once. Their order belongs to the pattern: `indices()`, `row` and `col`
    have it, `SparseTensor(pattern, values)` takes values in it, and patterns of other orders are not equal.
    `canonical()` has the same places by ascending row and column, each once.

    A pattern owns its memory: indices are copied in and copied out, so that no later write reaches them.
    """

    def __init__(self, indices: Any, size: Sequence[int] | None = None) -> None:
        with aside():
            self._build(as_indices(indices, size), size)

    def _build(self, given: Tensor, size: Sequence[int] | None) -> None:
        """`given` is ours already."""
        shape = as_size(given, size)
        check_bounds(given, shape)
        key = linear(given, shape)
        slot: Tensor | None = None
        if given.shape[1] > 1 and not bool((key[1:] > key[:-1]).all()):
            order = order_of(key)
            key = key[order]
            fresh = torch.ones_like(key, dtype=torch.bool)
            torch.ne(key[1:], key[:-1], out=fresh[1:])
            slot = torch.empty_like(order)
            slot[order] = fresh.cumsum(0) - 1
            given = given[:, order[fresh]]
        self._set(given.contiguous(), shape, slot)

    def _set(self, indices: Tensor, size: Size, slot: Tensor | None = None) -> None:
        self._indices = bare(indices)
        self._size = size
        self._slot = slot
        self._no_views()
        self._product: tuple[weakref.ref[Pattern], Any] | None = None  # the last plan of a product with this
        self._merged: dict[str, Any] = {}  # the last union and intersection with another
        self._canonical: Pattern | None = None
        self._ascending: Tensor | None = None
        self._hash: int | None = None

    @classmethod
    def _trusted(cls, indices: Tensor, size: Sequence[int]) -> Pattern:
        """Trusts the caller: int64 [dims, nnz] of our own, in bounds, in lexicographic order, no place twice."""
        made = cls.__new__(cls)
        made._set(indices, tuple(size))
        return made

    @classmethod
    def _from_keys(cls, keys: Tensor, size: Sequence[int]) -> Pattern:
        """Sorted unique linear numbers, trusted -> pattern."""
        return cls._trusted(unlinear(keys, tuple(size)), size)

    @classmethod
    def sorted(cls, indices: Any, size: Sequence[int]) -> Pattern:
        """Places that must be in lexicographic order already, each once: an error says if they are not."""
        made = cls(indices, size)
        if not made.is_canonical:
            raise PatternError(
                "Pattern.sorted takes places in ascending order, each once: use Pattern(indices, size), which "
                "sorts them."
            )
        return made

    @classmethod
    def from_keys(cls, keys: Any, size: Sequence[int]) -> Pattern:
        """Row-major numbers of places, in any order -> pattern."""
        shape, keys = tuple(int(n) for n in size), torch.as_tensor(keys)
        check_size("a pattern", shape)
        if keys.dim() != 1 or keys.is_floating_point() or keys.is_complex() or keys.dtype == torch.bool:
            raise PatternError(f"keys are one vector of whole numbers, not {keys.dtype} {tuple(keys.shape)}.")
        if keys.numel() and not (int(keys.min()) >= 0 and int(keys.max()) < math.prod(shape)):
            raise PatternError(f"a key is outside the {math.prod(shape)} places of {shape}.")
        return cls(unlinear(keys.to(torch.int64), shape), shape)

    # What it is

    @property
    def size(self) -> Size:
        return self._size

    @property
    def ndim(self) -> int:
        return len(self._size)

    @property
    def nnz(self) -> int:
        """How many different places there are."""
        return self._indices.shape[1]

    @property
    def given(self) -> int:
        """How many places were given: more than `nnz` when some were given twice."""
        return self.nnz if self._slot is None else self._slot.shape[0]

    @property
    def numel(self) -> int:
        return math.prod(self._size)

    @property
    def density(self) -> float:
        return self.nnz / self.numel if self.numel else 0.0

    @property
    def device(self) -> torch.device:
        return self._indices.device

    @property
    def has_duplicates(self) -> bool:
        return self.given != self.nnz

    @property
    def is_canonical(self) -> bool:
        """The places were given sorted and once each."""
        return self._slot is None

    def indices(self) -> Tensor:
        """[dims, given]: the places in the order in which values belong to them; a copy."""
        return self._indices.clone() if self._slot is None else self._indices[:, self._slot]

    def keys(self) -> Tensor:
        """[given], the row-major number of each place; a copy."""
        return self._as_given(self._keys())

    @property
    def ptr(self) -> Tensor:
        """[rows + 1], where each row starts; a copy."""
        self._need_canonical("ptr")
        return self._ptr.clone()

    @property
    def row(self) -> Tensor:
        """[given], a copy."""
        return self._as_given(self._row)

    @property
    def col(self) -> Tensor:
        """[given], a copy."""
        return self._as_given(self._col)

    def _as_given(self, axis: Tensor) -> Tensor:
        return axis.clone() if self._slot is None else axis.index_select(0, self._slot)

    def _need_canonical(self, name: str) -> None:
        if self._slot is not None:
            raise PatternError(
                f"{name} counts places in ascending order, and this pattern has them in another: use "
                f"pattern.canonical().{name}."
            )

    def transposed(self) -> tuple[Tensor, Tensor, Tensor]:
        """(ptr, row, perm) by columns: entry `perm[i]` of this pattern is the i-th of the transposed one. Copies."""
        self._need_canonical("transposed()")
        ptr, row, perm = self._transposed()
        return ptr.clone(), row.clone(), perm.clone()

    def canonical(self) -> Pattern:
        """The same places, sorted, each once."""
        if self._slot is None:
            return self
        if self._canonical is None:
            self._canonical = Pattern._trusted(self._indices, self._size)
        return self._canonical

    def arrange(self, values: Tensor, dim: int = 0) -> Tensor:
        """Values in the given order -> values in canonical order, duplicates summed."""
        if self._slot is None:
            return values
        if values.shape[dim] != self.given:
            raise PatternError(f"there are {values.shape[dim]} values for {self.given} given places.")
        if not self.has_duplicates:
            return values.index_select(dim, self._sorting())
        shape = list(values.shape)
        shape[dim] = self.nnz
        if values.dtype == torch.bool:
            return values.new_zeros(shape, dtype=torch.int64).index_add(dim, self._slot, values.long()) > 0
        return values.new_zeros(shape).index_add(dim, self._slot, values)

    def restore(self, values: Tensor, dim: int = 0) -> Tensor:
        """Values in canonical order -> values in the given order, repeated places alike."""
        return values if self._slot is None else values.index_select(dim, self._slot)

    def _sorting(self) -> Tensor:
        """Which given place is the i-th in ascending order, where none is given twice."""
        assert self._slot is not None
        if self._ascending is not None:
            return self._ascending
        slot = self._slot
        order = torch.empty_like(slot)
        order[slot] = torch.arange(slot.shape[0], device=slot.device)
        return self._keep("_ascending", lambda: order)

    def __eq__(self, other: object) -> bool:
        """The same places in the same order."""
        if self is other:
            return True
        if not isinstance(other, Pattern):
            return NotImplemented
        if (self._size, self.nnz, self.given, self.device) != (
            other._size,
            other.nnz,
            other.given,
            other.device,
        ):
            return False
        return same(self._slot, other._slot) and same(self._indices, other._indices)

    def __hash__(self) -> int:
        if self._hash is None:
            # Places on another device stay there: reading them would stop the host.
            index = self._indices if self._indices.is_cpu else self._indices.new_empty(0, device="cpu")
            places = index.contiguous().numpy().tobytes()
            self._hash = hash((self._size, self.nnz, self.given, places))
        return self._hash

    def __repr__(self) -> str:
        shape = " x ".join(str(n) for n in self._size)
        twice = f", {self.given - self.nnz} given twice" if self.has_duplicates else ""
        return f"Pattern({shape}, {self.nnz} places, {100 * self.density:.3g}% full{twice})"

    # As a set

    def __or__(self, other: Pattern) -> Pattern:
        return self.union(other)

    def __and__(self, other: Pattern) -> Pattern:
        return self.intersection(other)

    def __sub__(self, other: Pattern) -> Pattern:
        return self.difference(other)

    def union(self, other: Pattern) -> Pattern:
        from gradmend.sparse import setops

        return setops.union(self.canonical(), other.canonical())[0]

    def intersection(self, other: Pattern) -> Pattern:
        from gradmend.sparse import setops

        return setops.intersection(self.canonical(), other.canonical())[0]

    def difference(self, other: Pattern) -> Pattern:
        from gradmend.sparse import setops

        return setops.difference(self.canonical(), other.canonical())[0]

    def contains(self, indices: Tensor) -> Tensor:
        """[dims, n] -> [n] booleans; a place outside the size is in no pattern."""
        from gradmend.sparse import setops

        places = as_indices(indices, self._size).to(self.device)
        if places.shape[0] != self.ndim:
            raise PatternError(
                f"places of {places.shape[0]} dimensions are looked up in {self.ndim} of a pattern."
            )
        limit = torch.tensor(self._size, device=self.device)[:, None]
        inside = ((places >= 0) & (places < limit)).all(0)
        return setops.find(self.canonical(), linear(places, self._size))[0] & inside

    def missing(self, count: int, generator: torch.Generator | None = None) -> Pattern:
        """Places that are not in the pattern, at random; the complement is never built."""
        from gradmend.sparse import generate

        return generate.missing(self.canonical(), count, generator)

    @staticmethod
    def random(
        size: Sequence[int],
        density: float | None = None,
        nnz: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Pattern:
        from gradmend.sparse import generate

        return generate.random(size, density, nnz, generator)

    @staticmethod
    def blocks(places: Any, block: tuple[int, int], size: Sequence[int]) -> Pattern:
        from gradmend.sparse import generate

        return generate.blocks(places, block, size)

    # Moving and keeping

    def to(self, device: torch.device | str) -> Pattern:
        """The places on another device. There are none on "meta", which holds no numbers: they stay where they are."""
        device = torch.device(device)
        if device.type == "meta":
            return self
        if device == self.device or (device.index is None and device.type == self.device.type):
            return self
        made = Pattern._trusted(self._indices.to(device), self._size)
        made._slot = None if self._slot is None else self._slot.to(device)
        return made

    def share_memory(self) -> Pattern:
        """Moves the indices to shared memory, for DataLoader workers and torch.multiprocessing."""
        self._indices.share_memory_()
        if self._slot is not None:
            self._slot.share_memory_()
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Caches are rebuilt at the other end: they are twice the size of the pattern itself.
        return _restore, (self._indices, self._size, self._slot)

    def __deepcopy__(self, memo: dict[int, Any]) -> Pattern:
        return self  # immutable, and worth sharing


def same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


def _restore(indices: Tensor, size: Size, slot: Tensor | None) -> Pattern:
    """What pickle and torch.load call: a file may hold anything, so all is checked again; shared memory stays shared."""
    with aside():
        shape = as_size(indices, size)
        check_bounds(indices, shape)
        key = linear(indices, shape)
        good = indices.dtype == torch.int64 and bool((key[1:] > key[:-1]).all())
        if good and slot is not None:
            good = slot.dtype == torch.int64 and slot.dim() == 1 and slot.shape[0] >= key.shape[0]
            good = good and torch.equal(torch.unique(slot), torch.arange(key.shape[0], device=slot.device))
    if not good:
        raise PatternError("the saved pattern is damaged: its places are not in order.")
    made = Pattern._trusted(indices, shape)
    made._slot = slot
    return made
