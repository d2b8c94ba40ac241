"""Which Saves live, in the order they came. The dead drop out by themselves."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradmend.capture.native.loading import compiled

if TYPE_CHECKING:
    from gradmend.capture.ledger.entries import Entry

if TYPE_CHECKING or compiled is None:

    class Roll:
        """A Save is on one at a time."""

        __slots__ = ("_refs",)

        def __init__(self) -> None:
            self._refs: dict[int, weakref.ref[Entry]] = {}  # by their ticks

        def __len__(self) -> int:
            return len(self._refs)

        def __iter__(self) -> Iterator[Entry]:
            """Those that live now: the roll may change meanwhile."""
            return iter([entry for ref in list(self._refs.values()) if (entry := ref()) is not None])

        def add(self, entry: Entry) -> None:
            """Put a Save at its end, and take it off the roll where it was."""
            if entry.roll is not None:
                entry.roll.drop(entry)
            entry.roll = self
            self._refs[entry.tick] = weakref.ref(entry)

        def drop(self, entry: Entry) -> None:
            entry.roll = None
            self._refs.pop(entry.tick, None)

else:
    Roll = compiled.Roll
