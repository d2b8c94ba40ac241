"""A silent wrong that is no overwritten Save: its facts, before any words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradmend.capture.ledger.entries import Write
from gradmend.capture.sites import Raw


@dataclass(slots=True)
class SilentFinding:
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
