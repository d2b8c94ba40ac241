"""What the entries hold: a pattern and a plain tensor of values, speaking torch's language."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradmend.sparse.dispatch import dispatch
from gradmend.sparse.errors import PatternError, SparseError, missing
from gradmend.sparse.facts import Facts
from gradmend.sparse.kernels.plain import conj
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.source import Arranged, Copies, Picked, Source, watchable

_WEIGHT = "a gradmend.sparse.nn.SparseWeight"


class SparseTensor(Facts):
    """A sparse tensor whose values are an ordinary tensor, so that everything trains through them.

    >>> S = SparseTensor.from_coo([[0, 1], [1, 0]], torch.tensor([2.0, 3.0], requires_grad=True), (2, 2))
    >>> (S @ torch.eye(2)).sum().backward()

    The shape is batch dimensions, then the pattern's, then dense ones; values are [*batch, nnz, *dense].
    """

    # Ahead of numpy's and torch's own operators.
    __array_priority__ = 1000
    _gradient_of: Tensor | None = None
    _order: Pattern | None = None  # the user's pattern, if its order is not the ascending one of `_pattern`
    _copies: Copies | None = None
    _computed = False  # a gradient that was read from that of another tensor

    if not TYPE_CHECKING:  # else every misspelt name would pass a type checker

        def __getattr__(self, name: str) -> Any:
            if name == "__qualname__":  # what torch calls S when it refuses one as a parameter
                return f"SparseTensor, which is no Tensor: give S.values() or the parameters of {_WEIGHT}"
            if hasattr(Tensor, name) and not name.startswith("__"):
                raise missing(name)
            raise AttributeError(f"'SparseTensor' object has no attribute {name!r}")

    def __init__(self, pattern: Pattern, values: Tensor, *, batch_dims: int = 0) -> None:
        if not isinstance(pattern, Pattern):
            raise PatternError(
                f"SparseTensor takes a Pattern first, not {type(pattern).__name__}; from indices, write "
                f"SparseTensor.from_coo(indices, values, size)."
            )
        if not isinstance(values, Tensor):
            values = _as_values(values, pattern)
        if values.layout is not torch.strided:
            raise PatternError(
                f"values are an ordinary tensor, not {values.layout}: convert with SparseTensor.from_torch(A)."
            )
        if not isinstance(batch_dims, int) or batch_dims < 0:
            raise PatternError(f"batch_dims is a number of dimensions, not {batch_dims!r}.")
        if values.dim() <= batch_dims or values.shape[batch_dims] != pattern.given:
            raise PatternError(_mismatch(pattern, values, batch_dims))
        if values.device != pattern.device and not values.is_meta:
            raise PatternError(
                f"the pattern is on {pattern.device} and the values are on {values.device}: move one with .to()."
            )
        self._pattern = pattern.canonical()
        self._given = values
        self._source: Source | None = None
        self.batch_dims = batch_dims
        if not pattern.is_canonical:
            self._source = Arranged(pattern)
            self._order = None if pattern.has_duplicates else pattern

    @property
    def pattern(self) -> Pattern:
        """The places, in the order of `values()`."""
        return self._pattern if self._order is None else self._order

    @property
    def _values(self) -> Tensor:
        """[*batch, nnz, *dense] by ascending places: read each time from what was given."""
        given = self._given
        if self._copies is not None:
            self._copies.check()
        if self._source is not None:
            return self._source.read(given, self.batch_dims)
        # Who holds the values can resize them: nothing is computed from what no longer fits.
        if isinstance(given, Tensor) and given.shape[self.batch_dims] != self.pattern._indices.shape[1]:
            raise PatternError(_mismatch(self._pattern, given, self.batch_dims))
        return given

    def _ordered(self) -> Tensor:
        """The values in the order of `pattern`: a tensor that S reads, or a copy if `_copied()`."""
        values = self._values
        if self._order is None:
            return values
        return self._order.restore(values, self.batch_dims) if self._copied() else self._given

    def _copied(self) -> bool:
        """Whether the values are not one tensor in the order of `pattern`."""
        if isinstance(self._source, Arranged):
            return self._order is None  # repeated places are summed
        return self._source is not None or self._order is not None

    def like(
        self, values: Tensor, pattern: Pattern | None = None, batch_dims: int | None = None
    ) -> SparseTensor:
        """The same places, or those of `pattern`, with values by ascending places (unchecked: for operations)."""
        places = (self._pattern if self._order is None else self._order) if pattern is None else pattern
        b = self.batch_dims if batch_dims is None else batch_dims
        if values.device != places.device:
            places = places.to(values.device)
        return make(places, values, b) if places._slot is None else at(places, values, b)

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return dispatch(func, args, kwargs if kwargs is not None else {})

    # Parts, as torch spells them

    def values(self) -> Tensor:
        """One value per entry, in the order of `pattern` and `indices()`: the tensor that S was made from.

        It is a copy where there is no such tensor: S sums repeated places, reads a dense tensor, or is the result of
        an operation on places in another order. A write to the copy is an error when S is next used.
        """
        made = self._ordered()
        if (self._copied() or self._computed) and watchable(made):
            if self._copies is None:
                self._copies = Copies()
            self._copies.add(made)
        return made

    def indices(self) -> Tensor:
        """A copy: the pattern can't be changed through it."""
        return self.pattern.indices()

    def crow_indices(self) -> Tensor:
        self._need_matrix("crow_indices")
        row = self.pattern.row if self._order is not None else None
        if row is not None and bool((row[1:] < row[:-1]).any()):
            raise SparseError(
                "the entries of S are not in the order of rows, so no crow_indices() fits its values(): "
                "use S.coalesce().crow_indices()."
            )
        return self._pattern._ptr.clone()

    def col_indices(self) -> Tensor:
        self._need_matrix("col_indices")
        return self.pattern.col

    def _need_matrix(self, name: str) -> None:
        if self._pattern.ndim != 2:
            raise SparseError(
                f"{name}() takes 2 sparse dimensions, and S has {self._pattern.ndim}: use indices()."
            )

    def copy_(self, other: Any, non_blocking: bool = False) -> SparseTensor:
        """Takes over another's numbers, and its places if they differ: for load_state_dict, outside of any graph."""
        if not isinstance(other, SparseTensor) or other.shape != self.shape:
            got = tuple(other.shape) if hasattr(other, "shape") else type(other).__name__
            raise SparseError(f"S.copy_ takes a SparseTensor of the shape {tuple(self.shape)}, not {got}.")
        if torch.is_grad_enabled() and (self.requires_grad or other.requires_grad):
            raise SparseError(
                "S.copy_ would write to values that are being differentiated: use torch.no_grad()."
            )
        values = other._ordered().detach().to(self._given.device, self._given.dtype)
        if not self._copied() and self.batch_dims == other.batch_dims and self.pattern == other.pattern:
            self._given.copy_(values)
            return self
        fresh = SparseTensor(
            other.pattern.to(self.device),
            values.clone().requires_grad_(self.requires_grad),
            batch_dims=other.batch_dims,
        )
        for name in ("_order", "_copies"):
            self.__dict__.pop(name, None)
        self.__dict__.update(fresh.__dict__)
        return self

    def is_coalesced(self) -> bool:
        """Whether `indices()` ascend. No place is in them twice."""
        return self._order is None

    def coalesce(self) -> SparseTensor:
        """S with its entries by ascending places."""
        return self if self._order is None else make(self._pattern, self._values, self.batch_dims)

    @property
    def grad(self) -> SparseTensor | None:
        """The gradient of the values, at the same places."""
        found = self._given.grad
        if found is None:
            return None
        made = self._gradient(found)
        made._gradient_of = found
        if self._copied():
            made._copies = self._copies = self._copies or Copies()
            made._computed = True
        return made

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None:
            raise SparseError(
                "S.grad is read from its values: set S.values().grad, or the tensor S was made from."
            )
        self._given.grad = None

    @property
    def _behind(self) -> Tensor:
        """The memory of S's numbers; of a gradient, that of the gradient it was read from."""
        return self._given if self._gradient_of is None else self._gradient_of

    def _gradient(self, found: Tensor) -> SparseTensor:
        """The gradient of what was given, at the places."""
        if self._order is not None and not self._copied():
            return SparseTensor(self._order, found, batch_dims=self.batch_dims)
        return self.like(found if self._source is None else self._source.gradient(found, self.batch_dims))

    def requires_grad_(self, requires_grad: bool = True) -> SparseTensor:
        self._given.requires_grad_(requires_grad)
        return self

    def retain_grad(self) -> None:
        self._given.retain_grad()

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> Any:
        """The hook sees the gradient of the tensor that S was made from."""
        return self._given.register_hook(hook)

    @property
    def real(self) -> SparseTensor:
        return self.like(self._values.real)

    @property
    def imag(self) -> SparseTensor:
        return self.like(self._values.imag)

    def share_memory_(self) -> SparseTensor:
        self.pattern.share_memory()
        self._given.share_memory_()
        return self

    @property
    def T(self) -> SparseTensor:
        return self.permute(*reversed(range(self.ndim)))

    @property
    def mT(self) -> SparseTensor:
        return self.transpose(-2, -1)

    @property
    def H(self) -> SparseTensor:
        return self.mH if self.ndim > 1 else self.like(conj(self._values))

    @property
    def mH(self) -> SparseTensor:
        return self.like(conj(self._values)).transpose(-2, -1)

    def map(self, f: Callable[..., Tensor], *args: Any, **kwargs: Any) -> SparseTensor:
        """Any elementwise f on the stored entries: `S.map(torch.exp)`. What isn't stored stays zero."""
        values, n = self._values, self.batch_dims
        made = f(values, *args, **kwargs)
        if not isinstance(made, Tensor) or made.shape[: n + 1] != values.shape[: n + 1]:
            got = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
            raise SparseError(
                f"S.map takes a function that keeps one value per stored entry: it was given "
                f"{tuple(values.shape)} and returned {got}."
            )
        return self.like(made)

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise SparseError(
                f"the truth of a sparse tensor with {self.numel()} entries is ambiguous: use S.any() or S.all()."
            )
        return bool((self._values != 0).any())

    def __setitem__(self, index: Any, value: Any) -> None:
        raise SparseError(
            "a SparseTensor can't be written to: its pattern is fixed. Make new values out of place with "
            "S.map(f), or add another sparse tensor."
        )

    def __iter__(self) -> Any:
        if sys._getframe(1).f_globals.get("__name__") == "torch.nn.utils.clip_grad":
            # It takes what is no Tensor for a list of parameters, and would find that rows have no gradients.
            return iter((self,))
        return iter(self.unbind(0))

    def __repr__(self) -> str:
        from gradmend.sparse.show import describe

        return describe(self)

    def spy(self, width: int = 32, height: int = 12) -> str:
        """A small picture of where the entries are."""
        from gradmend.sparse.show import spy

        return spy(self.pattern, width, height)

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseTensor:
        import copy

        made = make(self._pattern, copy.deepcopy(self._given, memo), self.batch_dims)
        made._source, made._order = self._source, self._order
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self._source, Arranged):
            return load, (self._source.pattern, self._given, self.batch_dims)
        return load, (self.pattern, self._ordered(), self.batch_dims)

    @property
    def _is_param(self) -> bool:
        return False

    @_is_param.setter
    def _is_param(self, value: bool) -> None:
        """nn.Parameter(S) sets this mark, which a module then looks for on Tensors alone."""
        raise SparseError(
            "a SparseTensor can't be an nn.Parameter, because a module would not register it: use "
            "gradmend.sparse.nn.SparseWeight(S.pattern, S.values()), whose parameter is the values."
        )


def load(pattern: Pattern, values: Tensor, batch_dims: int = 0) -> SparseTensor:
    """What pickle and torch.load call: all is checked again."""
    return SparseTensor(pattern, values, batch_dims=batch_dims)


def make(pattern: Pattern, values: Tensor, batch_dims: int = 0) -> SparseTensor:
    """Unchecked: canonical pattern, values in its order."""
    made = SparseTensor.__new__(SparseTensor)
    made._pattern = pattern
    made._given = values
    made._source = None
    made.batch_dims = batch_dims
    return made


def at(pattern: Pattern, values: Tensor, batch_dims: int = 0) -> SparseTensor:
    """Unchecked: values by ascending places; `pattern` is that of the result, unless it repeats places."""
    made = make(pattern.canonical(), values, batch_dims)
    if pattern._slot is not None and not pattern.has_duplicates:
        made._order = pattern
    return made


def picked(pattern: Pattern, dense: Tensor) -> SparseTensor:
    """Unchecked: values read from a dense tensor by each operation."""
    made = at(pattern, dense)
    made._source = Picked(made._pattern)
    return made


def _as_values(values: Any, pattern: Pattern) -> Tensor:
    try:
        return torch.as_tensor(values, device=pattern.device)
    except (ValueError, TypeError, RuntimeError) as error:
        raise PatternError(f"values can't be read as a tensor: {error}") from error


def _mismatch(pattern: Pattern, values: Tensor, batch_dims: int) -> str:
    got = tuple(values.shape)
    where = f"dimension {batch_dims} of the values" if values.dim() > batch_dims else "the values"
    said = (
        f"the pattern has {pattern.given} entries and {where} has {got[batch_dims]} (values are {got}): "
        if values.dim() > batch_dims
        else f"values of the shape {got} have no dimension for the {pattern.given} entries: "
    )
    hint = "give one value per entry"
    if values.dim() == 2 and batch_dims == 0 and values.shape[1] == pattern.given:
        hint = "for a batch of values on one pattern, say batch_dims=1"
    elif pattern.has_duplicates and values.dim() > batch_dims and got[batch_dims] == pattern.nnz:
        hint = "some places were given twice; give a value for each, or use pattern.canonical()"
    return said + hint + "."
