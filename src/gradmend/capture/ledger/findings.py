"""What is found, before any words: of a Save that backward asks for, and of what is silently wrong without one."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch

from gradmend.capture.graph import calls, nodes
from gradmend.capture.ledger.entries import Save, Write
from gradmend.capture.memory.layouts import layout_of, overlap, physical
from gradmend.capture.memory.undo import first_after, same_bytes
from gradmend.capture.sites import Raw

if TYPE_CHECKING:
    from gradmend.capture.ledger.ledger import Ledger

# foreign: past torch. unknown: no tap saw it. left: after the scope was left, so that no tap was on.
Cause = Literal["write", "swap", "foreign", "unknown", "left"]

_storage_of = torch._C.TensorBase.untyped_storage
_MOST_REPLAYED = 32


@dataclass(eq=False)
class Finding:
    """A Save that PyTorch would refuse, or that has changed: the facts, before any words.

    A loop may find thousands of the same kind, so what only a story needs is looked up when it is asked for, while the
    Finding is told. Afterwards it holds what was looked up, and reads no ledger.
    """

    _ledger: Ledger | None
    save: Save
    slot: str | None
    changed: bool  # its bytes differ from what they were, or nobody can tell
    read: bool  # the node's backward reads this slot
    moved: bool  # the version counter stepped: plain PyTorch would raise
    cause: Cause

    def told(self) -> None:
        self._ledger = None

    @property
    def ledger(self) -> Ledger:
        """While it is told."""
        assert self._ledger is not None, "a Finding that was told reads no ledger"
        return self._ledger

    @property
    def harmful(self) -> bool:
        return self.changed and self.read

    @cached_property
    def node(self) -> Any:
        return nodes.current()

    @cached_property
    def backward(self) -> Raw:
        return calls.where()

    @cached_property
    def first(self) -> Write | None:
        """The first Write to tell of, found fast."""
        timeline, save = self.save.timeline, self.save
        if self.cause in ("left", "swap") or timeline is None or not timeline.log:
            return next(iter(self.writes), None)
        if self.changed and save.layout:
            record = timeline.undo.oldest_meeting(save.layout, save.tick)
            if record is not None:
                return record.write
        at = first_after(timeline.log, save.tick)
        return timeline.log[at] if at < len(timeline.log) else None

    @cached_property
    def writes(self) -> list[Write]:
        """The Writes to tell of: those that met the Save, else those PyTorch refuses it for. The one that first
        changed its value comes first."""
        save = self.save
        if self.cause == "left":
            return []  # those that were seen came before
        if self.cause == "swap":
            return [write for write, _ in save.swaps]
        if save.timeline is None:
            return []
        later = [w for w in save.timeline.log if w.tick > save.tick]
        if save.layout is None:
            return later[:1]
        met = [w for w in later if overlap(w.layout, save.layout)]
        if not met:
            return [w for w in later if w.moved]
        at = self._first_change(met) if self.changed and self.cause == "write" else 0
        return met[at:] + met[:at]

    def _first_change(self, met: list[Write]) -> int:
        save = self.save
        ledger = self._ledger
        saved = ledger.value(save) if ledger is not None and len(met) > 1 else None
        if ledger is None or saved is None or shrunk(save):
            return 0
        for at, write in enumerate(met[:_MOST_REPLAYED]):
            after = ledger.value(save, write.tick)
            if not same_bytes(physical(saved), physical(save.handle if after is None else after)):
                return at
        return 0

    @property
    def kept(self) -> int:
        """Bytes that were kept for this Save."""
        return self.first.kept if self.first is not None and self.changed else 0


def shrunk(save: Save) -> bool:
    """Its storage has become too small for it: reading it would leave the memory."""
    try:
        layout = save.layout or layout_of(save.handle)
        return _storage_of(save.handle).nbytes() < layout.hi
    except RuntimeError:
        return False  # sparse, wrapped: no memory of its own


@dataclass(slots=True)
class SilentFinding:
    """A silent wrong that is no overwritten Save."""

    rule: str
    writes: list[Write]  # the surest culprit first
    made: Raw = ()  # where the harmed value was kept, read first, or used again
    backward: Raw = ()
    tensor: tuple[tuple[int, ...], str] | None = None  # its shape and dtype
    op: str = ""  # what keeps or uses it
    also: Raw = ()  # a second place: the read in the recomputation, the branch that is harmed
    escape: Raw = ()  # where the memory was handed out, when nobody saw the write
    healed: bool = False  # the program can go on rightly, under heal()
    doubt: bool = False  # it may be meant: a warning, and the program goes on
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[object, ...]:
        return (self.rule, self.made, self.writes[0].raw if self.writes else None, self.also)
