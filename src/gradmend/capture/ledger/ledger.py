"""The ledger: Saves and Writes on one logical clock, and the verdict when backward asks for a Save.

pack   -> Ledger.save(t)            a Save is entered
tap    -> Ledger.before(...) / after(...)   a Write is entered; old bytes that a live Save needs are kept
unpack -> Ledger.ask(entry)         is it still what it was? The Scope's policy decides what follows.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from itertools import chain, count
from typing import Any

import torch

from gradmend.capture.ledger import escapes, fields
from gradmend.capture.ledger.composites import parts_of
from gradmend.capture.ledger.entries import Entry, Timeline, Written, next_number
from gradmend.capture.ledger.judging import Finding, judge
from gradmend.capture.ledger.keeping import keep
from gradmend.capture.ledger.rolls import Roll
from gradmend.capture.ledger.scopes import Scope
from gradmend.capture.memory.layouts import PLAIN, has_values, layout_of
from gradmend.capture.memory.undo import Elements, Record, UndoLog
from gradmend.capture.native.loading import compiled
from gradmend.capture.sites import Raw, raw_here
from gradmend.errors import BudgetError

_detach = torch._C.TensorBase.detach
_storage_of = torch._C.TensorBase.untyped_storage


_CHANGED = -1  # the fingerprint of no memory

Token = list[tuple[Timeline, Written, list[int]]]


def _addresses(storage: torch.UntypedStorage) -> tuple[int, int]:
    """From where to where it lies in memory; nowhere for meta and fake tensors and wrappers of others."""
    try:
        lo = storage.data_ptr()
    except RuntimeError:
        return 0, 0
    return (lo, lo + storage.nbytes()) if lo else (0, 0)


def _is_hollow(t: torch.Tensor, storage: torch.UntypedStorage) -> bool:
    """Of a class that keeps its values elsewhere: it has a size, and no memory."""
    if type(t) in PLAIN or storage.device.type == "meta":
        return False
    return storage.nbytes() > 0 and storage.data_ptr() == 0


class Ledger(fields.Ledger):
    def __init__(self) -> None:
        self.timelines = {}
        self.fresh = Roll()
        self.awake = set()
        self.dead = []
        self._clock = count(1)
        self.budgets = False
        self._lock = threading.RLock() if compiled is None else compiled.Lock()
        self._busy = 0

    def tick(self) -> int:
        return next(self._clock) if compiled is None else compiled.tick(self)

    # ------------------------------------------------------------------ Saves

    def save(self, t: torch.Tensor, scope: Scope, raw: Raw, kind: type[Entry] = Entry) -> Entry:
        entry = kind(_detach(t), t._version, self.tick(), raw, scope)
        entry.number = next_number() - 1  # of the newest node: the one that saves, see backwards.who_ran()
        entry.original = weakref.ref(t)
        try:
            storage = _storage_of(t)
            foreign = not storage.resizable()
            if _is_hollow(t, storage):
                return entry
        except RuntimeError:
            return entry  # wrapped: PyTorch's counter is all there is to go by
        self.fresh.add(entry)
        self.awake.add("saves")
        if foreign or scope.paranoid or escapes.known:
            self.look(entry, storage)
        return entry

    def look(self, entry: Entry, storage: torch.UntypedStorage) -> None:
        """Others may hold this memory too: then remember its bytes."""
        site = escapes.of(storage)
        if site is not None or entry.scope.paranoid:
            entry.escape = site
            entry.print = escapes.fingerprint(entry.handle)

    def settle(self) -> None:
        """Enter the Saves made since the last Write into the timelines of their storages."""
        if compiled is not None:
            return compiled.settle(self)
        with self._lock:
            timelines = self.timelines
            for entry in self.fresh:
                if entry.handle.is_nested:  # no region of its own: PyTorch's counter is all there is to go by
                    self.fresh.drop(entry)
                    continue
                key = _storage_of(entry.handle)._cdata
                (timelines.get(key) or self._timeline(key)).enter(entry)
            if not timelines:
                self._doze()

    def _doze(self) -> None:
        self.awake.discard("saves")
        if self.fresh or self.timelines:  # of another thread, meanwhile
            self.awake.add("saves")

    def bury(self) -> None:
        """Take dead Saves out. May run in a destructor, so it never waits nor re-enters."""
        if compiled is not None:
            return compiled.bury(self)
        if self._busy or not self._lock.acquire(blocking=False):
            return
        self._busy += 1
        try:
            while self.dead:
                timeline, layout = self.dead.pop()
                timeline.forget(layout)
                if not timeline.living() and self.timelines.get(timeline.key) is timeline:
                    del self.timelines[timeline.key]
            if not self.timelines and not self.fresh:
                self._doze()
        finally:
            self._busy -= 1
            self._lock.release()

    # ----------------------------------------------------------------- Writes

    def before(
        self,
        op: str,
        targets: Sequence[torch.Tensor],
        elements: Elements | None = None,
        how: str = "data",
        aliased: bool = False,
    ) -> Token | None:
        """A Write is about to happen: keep what live Saves need, and note where the counters stand.

        `aliased`: an argument shares memory with the target, so the op itself may save what it overwrites.
        """
        if self.fresh:
            self.settle()
        if self.dead:
            self.bury()
        token: Token | None = None
        for t in chain.from_iterable(map(parts_of, targets)):
            found = self._timeline_of(t, aliased)
            if found is None:
                continue
            if token is None:
                token = []
                raw = raw_here(2)
            with self._lock:
                self._busy += 1
                try:
                    token.append(self._enter(found[0], found[1], t, op, raw, elements, how, aliased))
                finally:
                    self._busy -= 1
        return token

    def _timeline_of(self, t: torch.Tensor, create: bool = False) -> tuple[Timeline, int] | None:
        try:
            storage = _storage_of(t)
            key = storage._cdata
            if _is_hollow(t, storage):
                return None
        except (RuntimeError, AttributeError, TypeError, ValueError):
            return None
        timeline = self.timelines.get(key)
        if timeline is not None:
            return timeline, 0
        if create:
            return self._timeline(key), 0
        if escapes.known or not storage.resizable():
            return self._by_address(storage)
        return None

    def _timeline(self, key: int) -> Timeline:
        timeline = self.timelines[key] = Timeline(key, self)
        self.awake.add("saves")
        return timeline

    def _by_address(self, storage: torch.UntypedStorage) -> tuple[Timeline, int] | None:
        """Foreign memory: another storage object may lie over the same bytes (a numpy round trip)."""
        lo, hi = _addresses(storage)
        if lo == hi:
            return None
        for timeline in list(self.timelines.values()):
            for entry in timeline.entries()[:1]:
                start, end = _addresses(_storage_of(entry.handle))
                if lo < end and start < hi:
                    return timeline, lo - start
        return None

    def _enter(
        self,
        timeline: Timeline,
        shift: int,
        t: torch.Tensor,
        op: str,
        raw: Raw,
        elements: Elements | None,
        how: str,
        aliased: bool,
    ) -> tuple[Timeline, Written, list[int]]:
        if timeline.unsettled():
            timeline.settle()
        layout = layout_of(t)
        written = Written(self.tick(), op, raw, layout, how)
        if shift:
            written.layout = layout.shifted(shift)
            elements = None
        if how == "data" and keep(timeline, t, written, elements, aliased) and self.budgets:
            self._check_budget(timeline, written)
        return timeline, written, [c.carrier._version for c in timeline.counters]

    def _check_budget(self, timeline: Timeline, written: Written) -> None:
        budget = min((b for e in timeline.entries() if (b := e.scope.budget) is not None), default=None)
        if budget is None or self.kept_bytes() <= budget:
            return
        for one in self.timelines.values():
            one.tidy()
        kept = self.kept_bytes()
        if kept <= budget:
            return
        from gradmend.capture.memory.budget import over_budget

        timeline.wrote(written)
        raise BudgetError(over_budget(budget, kept, [w for tl in self.timelines.values() for w in tl.log]))

    def kept_bytes(self) -> int:
        return sum(tl.undo.nbytes for tl in list(self.timelines.values()))

    def after(self, token: Token) -> None:
        """The Write has happened: credit the steps of the counters to it."""
        if self.fresh:
            self.settle()
        with self._lock:
            for timeline, written, before in token:
                for counter, version in zip(timeline.counters, before, strict=False):
                    if counter.credit(version):
                        written.moved = True
                if timeline.fresh:
                    self._reorder(timeline, written)
                timeline.wrote(written)
                if not timeline.living():
                    self.timelines.pop(timeline.key, None)

    def _reorder(self, timeline: Timeline, written: Written) -> None:
        """Saves that the op took of what it then overwrote (`x.mul_(x)`) are older than its Write."""
        born = [e for e in timeline.fresh if e.tick > written.tick and e.moved()]
        if not born:
            return
        timeline.settle()
        for entry in born:
            entry.forgive()
        now = self.tick()
        timeline.undo.retick(written.tick, now)
        written.tick = now

    def rewound(self, t: torch.Tensor, steps: int) -> None:
        """The version counter of `t` was put back by so many steps."""
        found = self._timeline_of(t) if steps else None
        if found is None:
            return
        with self._lock:
            for counter in found[0].counters:
                if counter.carried_by(t):
                    counter.credited -= steps
                    counter.seen = t._version

    def swapped(self, t: torch.Tensor, op: str) -> Callable[[], None]:
        """`t` is about to get other memory (`t.data = new`, `t.set_`): Saves that are `t` itself lose theirs."""
        self.settle()
        found = self._timeline_of(t)
        mine = [] if found is None else [e for e in found[0].entries() if e.original and e.original() is t]
        if not mine:
            return _nothing
        written = Written(self.tick(), op, raw_here(2), layout_of(t), "metadata")
        for entry in mine:
            self._leave_counter(entry)

        def done() -> None:
            new = _detach(t)
            for entry in mine:
                entry.swaps = (*entry.swaps, (written, new))

        return done

    def _leave_counter(self, entry: Entry) -> None:
        """From now on only its bytes tell whether its memory changed unseen: its counter steps for other memory."""
        if entry.uncredited():
            entry.print = _CHANGED
        elif entry.print is None:
            value = self.value(entry)
            entry.print = escapes.fingerprint(entry.handle if value is None else value)

    # ---------------------------------------------------------------- Escapes

    def escaped(self, t: torch.Tensor | torch.UntypedStorage, how: str) -> None:
        """Memory is being handed out beyond torch: from now on only its bytes tell whether it changed."""
        storage = t if isinstance(t, torch.UntypedStorage) else _storage_of(t)
        site = escapes.note(storage, how)
        self.settle()
        timeline = self.timelines.get(storage._cdata)
        if timeline is None:
            return
        for entry in timeline.entries():
            if entry.print is None:
                entry.escape = site
                value = self.value(entry)
                entry.print = escapes.fingerprint(entry.handle if value is None else value)

    def seal(self, scope: Scope) -> None:
        """The taps are going away: from now on, only fingerprints can tell a Write that bumps no counter."""
        self.settle()
        for timeline in list(self.timelines.values()):
            for entry in timeline.entries():
                if entry.scope is scope and entry.print is None:
                    value = self.value(entry)
                    entry.print = escapes.fingerprint(entry.handle if value is None else value)

    # ---------------------------------------------------------------- Verdict

    def ask(self, entry: Entry, packed: object = None) -> torch.Tensor:
        """Backward wants a Save back: the value it shall have, or the exception that the policy raises.

        `packed` is what the node holds for it, where that is not the entry itself.
        """
        timeline, handle = entry.timeline, entry.handle
        if (
            (timeline is None or timeline.last < entry.tick)
            and handle._version == entry.version
            and entry.print is None
            and not entry.swaps
        ):
            return handle
        value = judge(self, entry, packed)
        return value if has_values(handle) else handle  # a dry run has no old values, and needs none

    def exact(self, entry: Entry) -> Record | None:
        """The one Record that holds the whole saved value, where that is so plain that a look tells."""
        timeline, layout, handle = entry.timeline, entry.layout, entry.handle
        if timeline is None or layout is None or handle.is_neg() or handle.is_conj():
            return None
        with self._lock:
            return timeline.undo.exact(layout, entry.tick)

    def value(self, entry: Entry, tick: int | None = None) -> torch.Tensor | None:
        """The saved bytes as they were at the Save, or at `tick`, only to be read; None when no kept Write touched them."""
        timeline = entry.timeline
        if timeline is None or not timeline.undo.records:
            return None
        if compiled is not None and tick is None and (value := compiled.exact_value(entry)) is not None:
            return value
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self.value(entry, tick)
        with self._lock:
            if entry.layout is None:
                timeline.settle()
            assert entry.layout is not None
            storage = _storage_of(entry.handle)
            at = entry.tick if tick is None else tick
            value = timeline.undo.value(storage, entry.layout, at, self.tick())
        if value is None:
            return None
        if entry.handle.is_neg():
            value = torch._neg_view(value)
        return value.conj() if entry.handle.is_conj() else value


def _nothing() -> None:
    pass


if compiled is not None:
    # The names on torch.Tensor may be tapped.
    _Base: Any = torch._C.TensorBase
    compiled.know_writes(
        Written,
        Record,
        _Base.__dict__["is_cpu"],
        _detach,
        _Base.__getitem__,
        escapes.known,
        keep,
    )


__all__ = ["Elements", "Entry", "Finding", "Ledger", "UndoLog", "Written"]
