"""A Save of a tensor that lies in the memory of others: a sparse or nested one, or a wrapper such as DTensor.

What can be overwritten are its indices and values, or the tensors that it wraps. Each of them is a Save of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_wrapper

from gradmend.capture.ledger.entries import Counter, Save, made_save
from gradmend.capture.memory.layouts import PLAIN, physical
from gradmend.capture.memory.undo import same_bytes
from gradmend.capture.sites import Raw
from gradmend.errors import GradmendError

if TYPE_CHECKING:
    from gradmend.capture.ledger.ledger import Ledger
    from gradmend.capture.ledger.scopes import Scope

_Base: Any = torch._C.TensorBase  # the names on torch.Tensor may be tapped
_rows = _Base.crow_indices, _Base.col_indices
_columns = _Base.ccol_indices, _Base.row_indices

# The values come first: they are what programs write.
_PARTS: dict[torch.layout, Sequence[Callable[[torch.Tensor], torch.Tensor]]] = {
    torch.sparse_coo: (_Base._values, _Base._indices),
    torch.sparse_csr: (_Base.values, *_rows),
    torch.sparse_bsr: (_Base.values, *_rows),
    torch.sparse_csc: (_Base.values, *_columns),
    torch.sparse_bsc: (_Base.values, *_columns),
}


def _wraps(t: torch.Tensor) -> bool:
    return type(t) not in PLAIN and (is_wrapper(t) or _holds(t))


def _holds(t: torch.Tensor) -> bool:
    """Whether it is a wrapper that does not say what it wraps: it has a size and no memory, and tensors on attributes."""
    if hasattr(t, "fake_mode") or not any(isinstance(v, torch.Tensor) for v in vars(t).values()):
        return False
    try:
        return _Base.untyped_storage(t).data_ptr() == 0
    except RuntimeError:
        return True


def has_parts(t: torch.Tensor) -> bool:
    """Whether its memory is that of other tensors."""
    return _wraps(t) or t.layout in _PARTS or t.is_nested


def parts_of(t: torch.Tensor) -> list[torch.Tensor]:
    """The tensors in whose memory this one lies: itself, or those that it is made of."""
    try:
        if _wraps(t):
            return [part for inner in _wrapped(t) for part in parts_of(inner)]
        if t.layout in _PARTS:
            handle = _Base.detach(t)
            return [part(handle) for part in _PARTS[t.layout]]
        if t.is_nested:  # its rows one after the other
            return [_Base.values(_Base.detach(t))]
    except RuntimeError:
        pass  # a fake one, or another that shows no parts: its counter is all there is to go by
    return [t]


def _wrapped(t: Any) -> list[torch.Tensor]:
    found = (getattr(t, name) for name in t.__tensor_flatten__()[0]) if is_wrapper(t) else vars(t).values()
    return [inner for inner in found if isinstance(inner, torch.Tensor)]  # a DTensor's mesh is none


def _made_of(like: Any, parts: Iterator[torch.Tensor | None]) -> torch.Tensor:
    """The same as `like`, of these parts; None: of its own. (Ragged ones know each other by their offsets' tensor.)"""
    if _wraps(like):
        if not is_wrapper(like):
            raise GradmendError(
                f"gradmend.heal(): a tensor inside a {type(like).__name__} was overwritten since backward's value of it was "
                f"kept, and {type(like).__name__} can't be built again: give it __tensor_flatten__ and __tensor_unflatten__, "
                "or write out of place"
            )
        names, how = like.__tensor_flatten__()
        inner = {name: getattr(like, name) for name in names}
        inner = {n: _made_of(v, parts) if isinstance(v, torch.Tensor) else v for n, v in inner.items()}
        whole: torch.Tensor = type(like).__tensor_unflatten__(inner, how, like.size(), like.stride())
        return whole
    own = parts_of(like)
    given = [mine if part is None else part for mine, part in zip(own, parts, strict=False)]
    if like.layout is torch.sparse_coo:
        values, indices = given
        return torch.sparse_coo_tensor(
            indices, values, like.shape, is_coalesced=like.is_coalesced(), check_invariants=False
        )
    if like.layout in _PARTS:
        values, outer, inside = given
        return torch.sparse_compressed_tensor(
            outer, inside, values, like.shape, layout=like.layout, check_invariants=False
        )
    if like.is_nested:
        rows = (
            like._nested_tensor_size(),
            like._nested_tensor_strides(),
            like._nested_tensor_storage_offsets(),
        )
        return torch._nested_view_from_buffer(given[0], *rows)
    return given[0]


class Pieces:
    """What the graph keeps for such a tensor."""

    __slots__ = ("_ledger", "number", "parts", "raw", "stepped", "whole")

    def __init__(self, ledger: Ledger, t: torch.Tensor, scope: Scope, raw: Raw) -> None:
        self._ledger = ledger
        self.whole = made_save(_Base.detach(t), t._version, ledger.tick(), raw, scope)
        self.parts: list[Save] = [ledger.save(part, scope, raw) for part in parts_of(t)]
        self.raw = raw
        self.number = self.parts[0].number
        self.stepped = False  # its version counter, since it was saved
        self._count_as_one()

    def are_values(self, part: Save) -> bool:
        """Whether this part is the values of a sparse tensor."""
        return self.whole.handle.layout in _PARTS and part is self.parts[0]

    def _count_as_one(self) -> None:
        """A Write to a part may step the counter of the whole: that is no step unseen."""
        self._ledger.settle()
        handle = self.whole.handle
        timelines = [part.timeline for part in self.parts if part.timeline is not None]
        known = (c for timeline in timelines for c in timeline.counters if c.carried_by(handle))
        counter = next(known, None) or Counter(handle)
        for timeline in timelines:
            timeline.open()
            if counter not in timeline.counters:
                timeline.counters.append(counter)
            timeline.settle()
        self.whole.settle(counter)

    def ask(self) -> torch.Tensor:
        """The tensor as it was saved, or the exception that the policy raises."""
        if self.whole.uncredited():
            return self._ledger.ask(self.whole, self)
        self.stepped = self.whole.moved()
        written = [p for p in self.parts if p.timeline is not None and p.timeline.last >= p.tick]
        for part in self.parts:
            # PyTorch's refusal is told once: of what was written, if anything was.
            part.unchecked = part not in written if written else part is not self.parts[0]
        values = [(part.handle, self._ledger.ask(part, self)) for part in self.parts]
        old = [
            None if value is now or same_bytes(physical(value), physical(now)) else value
            for now, value in values
        ]
        if all(value is None for value in old):
            return self.whole.handle
        return _made_of(self.whole.handle, iter(old))
