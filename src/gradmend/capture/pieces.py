"""A Save of a sparse tensor. It has no storage of its own: what can be overwritten is the memory of its indices and values.

These are tensors like any other, so each is a Save of its own. They carry the version counter of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradmend.capture.entries import Counter, Entry
from gradmend.capture.sites import Raw

if TYPE_CHECKING:
    from gradmend.capture.ledger import Ledger
    from gradmend.capture.verdict import Scope

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


def parts_of(t: torch.Tensor) -> list[torch.Tensor]:
    """The tensors in whose memory this one lies: itself, or those that a sparse one is made of."""
    parts = _PARTS.get(t.layout)
    if parts is None:
        return [t]
    handle = _Base.detach(t)
    return [part(handle) for part in parts]


class Pieces:
    """What the graph keeps for a saved sparse tensor."""

    __slots__ = ("_ledger", "handle", "parts")

    def __init__(self, ledger: Ledger, t: torch.Tensor, scope: Scope, raw: Raw) -> None:
        self._ledger = ledger
        self.handle: torch.Tensor = _Base.detach(t)
        self.parts: list[Entry] = [ledger.save(part, scope, raw) for part in parts_of(t)]
        self._count_as_one()

    def _count_as_one(self) -> None:
        """A Write to one part steps the counter of all: none of them may take that for a step unseen."""
        self._ledger.settle()
        timelines = [part.timeline for part in self.parts if part.timeline is not None]
        known = (c for timeline in timelines for c in timeline.counters if c.carried_by(self.handle))
        counter = next(known, None) or Counter(self.handle)
        for timeline in timelines:
            if counter not in timeline.counters:
                timeline.counters.append(counter)
            timeline.settle()

    @property
    def raw(self) -> Raw:
        return self.parts[0].raw

    def ask(self) -> torch.Tensor:
        """The tensor as it was saved, or the exception that the policy raises."""
        written = [p for p in self.parts if p.timeline is not None and p.timeline.last >= p.tick]
        for part in self.parts:
            # PyTorch's refusal is told once: of what was written, if anything was.
            part.unchecked = part not in written if written else part is not self.parts[0]
        values = [self._ledger.ask(part, self) for part in self.parts]
        if all(value is part.handle for value, part in zip(values, self.parts, strict=True)):
            return self.handle
        return self._made_of(*values)

    def _made_of(self, values: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
        shape, layout = self.handle.shape, self.handle.layout
        if layout is torch.sparse_coo:
            return torch.sparse_coo_tensor(
                indices[0], values, shape, is_coalesced=self.handle.is_coalesced(), check_invariants=False
            )
        outer, inner = indices
        return torch.sparse_compressed_tensor(
            outer, inner, values, shape, layout=layout, check_invariants=False
        )


__all__ = ["Pieces", "parts_of"]
