"""What the ledger's entries hold: plain attributes here, members of a struct in the compiled part (native/fields.h).

Their methods are in ledger.py, entries.py, regions.py and undo.py: see grafted().
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch

from gradmend.capture.native.loading import compiled

if TYPE_CHECKING:
    from gradmend.capture.edits import edit, live_edits
    from gradmend.capture.ledger import entries, ledger, scopes
    from gradmend.capture.ledger.rolls import Roll
    from gradmend.capture.memory import layouts, undo
    from gradmend.capture.sites import Raw

    # The timeline and the layout of a Save that is gone.
    Death = tuple[entries.Timeline, layouts.Layout | None]

_T = TypeVar("_T", bound=type)


def grafted(kind: _T) -> _T:
    """A class with the methods of one of the types below; where that is compiled, the type itself gets them.

    CPython counts and tracks the instances of every class made in Python, whatever it derives from, and a loop makes
    thousands: each would bring the next collection of all of torch's objects nearer.
    """
    if compiled is None:
        return kind
    (base,) = kind.__bases__
    for name, value in vars(kind).items():
        if name not in ("__slots__", "__dict__", "__weakref__"):
            setattr(base, name, value)
    return base  # type: ignore[return-value]


if TYPE_CHECKING or compiled is None:

    class Ledger:
        timelines: dict[int, entries.Timeline]
        fresh: Roll  # Saves not yet in a timeline: most die before a Write comes
        awake: set[str]  # holds "saves" while a Save lives
        dead: list[Death]
        budgets: int  # whether any heal() has one
        _lock: threading.RLock
        _busy: int  # a Save that dies must wait to be buried

    class Timeline:
        __slots__ = (
            "counters", "deaths", "fresh", "gone", "index", "key", "last", "ledger", "live", "log", "newest", "undo",
        )  # fmt: skip
        ledger: ledger.Ledger
        key: int
        live: Roll
        fresh: Roll  # not yet indexed: most storages are never written
        index: layouts.LayoutIndex
        counters: list[entries.Counter]
        undo: undo.UndoLog
        log: list[entries.Written]
        last: int  # the tick of the last Write
        newest: int  # the tick of the last Save
        gone: list[layouts.Layout]  # of dead Saves, in the index still
        deaths: int

    class Entry:
        # Rare attributes are the class's until they are set: a Save is made for every tensor an op keeps.
        handle: torch.Tensor
        version: int
        tick: int
        raw: Raw
        scope: scopes.Scope
        number: int = 0  # of the newest node when it was made
        timeline: entries.Timeline | None = None
        layout: layouts.Layout | None = None
        original: weakref.ref[torch.Tensor] | None = None  # the very tensor that was packed
        unchecked: int = 0  # below hooks of the program's own, PyTorch does not look at the counter
        # Writes that put other memory under it, and that memory.
        swaps: tuple[tuple[entries.Written, torch.Tensor], ...] = ()
        print: int | None = None  # fingerprint of the saved bytes
        escape: Raw | None = None  # where the memory was handed out beyond torch
        counter: entries.Counter | None = None
        roll: Roll | None = None
        standing: int = 0  # its version without the steps of its counter that were accounted for

    class Written:
        __slots__ = ("how", "kept", "layout", "moved", "op", "raw", "tick")
        tick: int
        op: str
        raw: Raw
        layout: layouts.Layout
        how: str
        moved: int  # whether some version counter of the storage stepped
        kept: int  # bytes kept in the undo log

    class Counter:
        __slots__ = ("base", "carrier", "credited", "seen")
        carrier: torch.Tensor
        base: weakref.ref[torch.Tensor] | None  # all views of it share the counter, as it does itself
        credited: int
        seen: int

    class Record:
        __slots__ = ("elements", "layout", "nbytes", "old", "tick", "written")
        written: entries.Written
        layout: layouts.Layout
        old: torch.Tensor | bytes
        elements: undo.Elements | None
        tick: int
        nbytes: int

    class UndoLog:
        __slots__ = ("_filed", "_index", "_indexed", "_series", "_shadow", "nbytes", "records")
        records: list[undo.Record]
        nbytes: int
        _series: dict[layouts.Layout, list[undo.Record]]  # of the first so many Records, oldest first
        _filed: int
        _index: layouts.LayoutIndex  # of the first so many regions of the series: it is seldom asked
        _indexed: int
        _shadow: undo.Shadow | None

    class Edits:
        on: int  # how many contexts listen
        aliases: dict[int, live_edits._Alias]
        pending: list[weakref.ref[edit.Edit]]
        handed: list[weakref.ref[live_edits.Handed]]
        inputs: list[list[torch.Tensor]]  # of the custom forwards that are running
        leaf_writes: list[tuple[torch.Tensor, entries.Written]]

    class Layout(NamedTuple):
        lo: int  # bounds, in bytes
        hi: int
        dense: bool  # every byte between the bounds belongs to it
        offset: int  # in elements, as shape and strides
        shape: tuple[int, ...]
        strides: tuple[int, ...]
        dtype: torch.dtype

    class LayoutIndex:
        __slots__ = ("_classes", "_counts", "_gone", "_unsorted", "hi", "lo")
        _counts: dict[layouts.Layout, int]  # how many Saves
        _unsorted: list[layouts.Layout]
        _gone: set[layouts.Layout]  # sorted or to be sorted still, though no Save has them
        _classes: dict[int, list[tuple[int, int, layouts.Layout]]]
        lo: int  # never drawn in: a bound, not a promise
        hi: int

else:
    Ledger, Timeline, Entry, Written = compiled.Ledger, compiled.Timeline, compiled.Entry, compiled.Written
    Counter, Record, Edits = compiled.Counter, compiled.Record, compiled.Edits
    UndoLog, Layout, LayoutIndex = compiled.UndoLog, compiled.Layout, compiled.LayoutIndex
