"""The ledger: Saves and Writes on one logical clock, and the verdict when backward asks for a Save.

pack   -> Ledger.save(t)            a Save is entered
tap    -> Ledger.before(...) / after(...)   a Write is entered; old bytes that a live Save needs are kept
unpack -> Ledger.ask(save)         is it still what it was? The Scope's policy decides what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import torch

from gradmend.capture import edge
from gradmend.capture.graph.nodes import number
from gradmend.capture.ledger import escapes
from gradmend.capture.ledger.composites import parts_of
from gradmend.capture.ledger.entries import (
    Roll,
    Save,
    Timeline,
    Write,
    made_save,
    made_write,
    next_number,
    same_counter,
)
from gradmend.capture.ledger.judging import judge
from gradmend.capture.ledger.keeping import keep
from gradmend.capture.ledger.lock import Lock
from gradmend.capture.ledger.scopes import Scope
from gradmend.capture.memory.layouts import PLAIN, Layout, layout_of, overlap
from gradmend.capture.memory.undo import Elements
from gradmend.capture.sites import Raw, raw_here
from gradmend.capture.unseen import hidden, seen, unseen, without_grad
from gradmend.errors import BudgetError

try:
    import cython
except ImportError:
    from gradmend.capture.native import uncompiled as cython

_ref = edge.ref
_version = edge.version
_detach = torch._C.TensorBase.detach
_modes = torch._C._len_torch_dispatch_stack
_STRIDED = torch.strided
_escaped = escapes.known
_storage_of = torch._C.TensorBase.untyped_storage


Token = list[tuple[Timeline, Write, torch.Tensor, list[int]]]


def _addresses(storage: torch.UntypedStorage) -> tuple[int, int]:
    """From where to where it lies in memory; nowhere for meta and fake tensors and wrappers of others."""
    if storage.device.type == "meta":
        return 0, 0
    try:
        lo = storage.data_ptr()
    except RuntimeError:
        return 0, 0
    return (lo, lo + storage.nbytes()) if lo else (0, 0)


def _is_hollow(t: torch.Tensor, storage: torch.UntypedStorage) -> bool:
    """Of a class that keeps its values elsewhere: it has a size, and no memory."""
    return storage.device.type != "meta" and storage.nbytes() > 0 and storage.data_ptr() == 0


_detach_unseen = hidden(_detach)


@cython.no_gc
@cython.cclass
class Ledger:
    __slots__ = ("_busy", "_clock", "about_to", "awake", "budgets", "dead", "fresh", "lock", "timelines")

    def __init__(self) -> None:
        self.timelines: dict[int, Timeline] = {}
        self.fresh = Roll()  # Saves not yet in a timeline: most die before a Write comes
        self.awake: set[str] = set()  # holds "saves" while a Save lives
        self.dead: list[tuple[Timeline, Layout | None]] = []
        self._clock = count(1)
        self.budgets = False  # whether any heal() has one
        # Told of each region just before a Write of it; only while a Save lives.
        self.about_to: list[Callable[[torch.Tensor, Layout | None], None]] = []
        self.lock = Lock()
        self._busy = 0  # a Save that dies must wait to be buried

    def tick(self) -> int:
        return next(self._clock)

    # ------------------------------------------------------------------ Saves

    def save(self, t: torch.Tensor, scope: Scope, raw: Raw, kind: type[Save] | None = None) -> Save:
        handle = _detach_unseen(t) if _modes() else _detach(t)
        save = made_save(handle, _version(t), next(self._clock), raw, scope, kind)
        save.number = next_number() - 1  # of the newest node: the one that saves, see backwards.who_ran()
        save.original = _ref(t)
        try:
            storage = _storage_of(t)
            foreign = not storage.resizable() or storage.is_shared()  # look() knows those of a GPU apart
            if type(t) not in PLAIN and _is_hollow(t, storage):
                return save
        except RuntimeError:
            return save  # wrapped: PyTorch's counter is all there is to go by
        self.fresh.add(save)
        self.awake.add("saves")
        if foreign or scope.paranoid or _escaped:
            self.look(save, storage)
        return save

    def look(self, save: Save, storage: torch.UntypedStorage) -> None:
        """Others may hold this memory too: then remember its bytes."""
        site = escapes.of(storage)
        if site is not None or save.scope.paranoid:
            save.escape = site
            save.print = escapes.fingerprint(save.handle)

    def settle(self) -> None:
        """Enter the Saves made since the last Write into the timelines of their storages."""
        self.lock.take()
        try:
            timelines = self.timelines
            for save in self.fresh.living():
                if save.handle.is_nested:  # no region of its own: PyTorch's counter is all there is to go by
                    self.fresh.drop(save)
                    continue
                key = _storage_of(save.handle)._cdata
                timeline = timelines.get(key)
                if timeline is None:
                    timeline = self._timeline(key)
                timeline.enter(save)
            if not timelines:
                self._doze()
        finally:
            self.lock.give()

    def _doze(self) -> None:
        self.awake.discard("saves")
        if len(self.fresh) or self.timelines:  # of another thread, meanwhile
            self.awake.add("saves")

    def bury(self) -> None:
        """Take dead Saves out. May run in a destructor, so it never waits nor re-enters."""
        if self._busy or not self.lock.take(False):
            return
        self._busy += 1
        try:
            while self.dead:
                timeline, layout = self.dead.pop()
                timeline.forget(layout)
                if not timeline.lives() and self.timelines.get(timeline.key) is timeline:
                    del self.timelines[timeline.key]
            if not self.timelines and not len(self.fresh):
                self._doze()
        finally:
            self._busy -= 1
            self.lock.give()

    # ----------------------------------------------------------------- Writes

    def before(
        self,
        op: str,
        targets: Sequence[torch.Tensor],
        elements: Elements | None = None,
        how: str = "data",
        aliased: bool = False,
        region: Layout | None = None,
    ) -> Token | None:
        """A Write is about to happen: keep what live Saves need, and note where the counters stand.

        `region`: what of the one target is written, if that is not all of it.
        `aliased`: an argument shares memory with the target, so the op itself may save what it overwrites.
        """
        if len(self.fresh):
            self.settle()
        if self.dead:
            self.bury()
        if not self.timelines and not aliased:
            self._doze()  # all died before a Write came, as after most backwards: the next taps pass
            return None
        token: Token | None = None
        for target in targets:
            for t in (target,) if type(target) in PLAIN and target.layout is _STRIDED else parts_of(target):
                if self.about_to and how == "data":
                    for tell in tuple(self.about_to):  # other threads come and go
                        tell(t, region)
                found = self._timeline_of(t, aliased)
                if found is None:
                    continue
                if token is None:
                    token = []
                    raw = raw_here()
                timeline, shift = found
                self.lock.take()
                self._busy += 1
                try:
                    token.append(self._enter(timeline, shift, t, op, raw, elements, how, aliased, region))
                finally:
                    self._busy -= 1
                    self.lock.give()
        return token

    def _timeline_of(self, t: torch.Tensor, create: bool = False) -> tuple[Timeline, int] | None:
        try:
            storage = _storage_of(t)
            key = storage._cdata
            if type(t) not in PLAIN and _is_hollow(t, storage):
                return None
        except (RuntimeError, AttributeError, TypeError, ValueError):
            return None
        timeline = self.timelines.get(key)
        if timeline is not None:
            return timeline, 0
        if create:
            return self._timeline(key), 0
        if _escaped or escapes.is_foreign(storage):
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
            for save in timeline.saves()[:1]:
                start, end = _addresses(_storage_of(save.handle))
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
        region: Layout | None,
    ) -> tuple[Timeline, Write, torch.Tensor, list[int]]:
        timeline.settle()
        layout = layout_of(t) if region is None else region
        write = made_write(next(self._clock), op, raw, layout, how)
        if shift:
            write.layout = layout.shifted(shift)
            elements = None
        if how == "data" and keep(timeline, t, write, elements, aliased, region is None) and self.budgets:
            self._check_budget(timeline, write)
        return timeline, write, t, [_version(counter.carrier) for counter in timeline.counters]

    def _check_budget(self, timeline: Timeline, write: Write) -> None:
        budget = min((b for e in timeline.saves() if (b := e.scope.budget) is not None), default=None)
        if budget is None or self.kept_bytes() <= budget:
            return
        for one in self.timelines.values():
            one.tidy()
        # Those of a watch() whose graph lives on are none of this budget.
        mine = [tl for tl in self.timelines.values() if any(e.scope.budget is not None for e in tl.saves())]
        kept = sum(tl.undo.nbytes for tl in mine)
        if kept <= budget:
            return
        from gradmend.capture.memory.budget import over_budget

        timeline.wrote(write)
        raise BudgetError(over_budget(budget, kept, [w for tl in mine for w in tl.log]))

    def kept_bytes(self) -> int:
        return sum(tl.undo.nbytes for tl in list(self.timelines.values()))

    def after(self, token: Token) -> None:
        """The Write has happened: credit the steps of the counters to it."""
        if len(self.fresh):
            self.settle()
        self.lock.take()
        try:
            for timeline, write, t, before in token:
                for at in range(len(before)):  # counters met since then come after these
                    counter = timeline.counters[at]
                    if counter.credit(before[at]):
                        write.moved = True
                if timeline.entered:
                    self._reorder(timeline, write, t, len(token) == 1)
                timeline.wrote(write)
                if not timeline.lives():
                    self.timelines.pop(timeline.key, None)
        finally:
            self.lock.give()

    def _reorder(self, timeline: Timeline, write: Write, t: torch.Tensor, alone: bool) -> None:
        """Saves that the op took of what it then overwrote (`x.mul_(x)`) are older than its Write.

        Their counter has stepped since, or is not that of the target `t` (`x.data.mul_(x)`): a result is saved after the step, as `t`.
        """
        entered = [save for ref in timeline.entered if (save := ref()) is not None]
        taken = [save for save in entered if save.tick > write.tick]
        born = [s for s in taken if s.moved() or not _is_result_of(s, t)]
        if not born:
            return
        timeline.settle()
        covered = write.how != "data" or timeline.undo.holds(write)
        for save in born:
            assert save.layout is not None
            if not overlap(save.layout, write.layout) or (covered and (alone or save.moved())):
                save.forgive()
            else:
                save.print = escapes.CHANGED  # nothing holds what it was
        now = self.tick()
        timeline.undo.retick(write.tick, now)
        write.tick = now
        for save in taken:
            if save not in born:  # the op's own result (`t.pow_(t)` saves both): newer than its Write
                save.tick = timeline.newest = self.tick()

    def steps_ahead(self, tensors: Sequence[torch.Tensor]) -> None:
        """The version counters of these are about to step once for each, and nothing is written: `ctx.mark_dirty`."""
        self.settle()
        for t in tensors:
            found = self._timeline_of(t)
            if found is None:
                continue
            with self.lock:
                found[0].settle()
                for counter in found[0].counters:
                    if counter.carried_by(t):
                        counter.credited += 1
                        counter.seen = max(counter.seen, t._version) + 1

    def rewound(self, t: torch.Tensor, steps: int) -> None:
        """The version counter of `t` was put back by so many steps."""
        found = self._timeline_of(t) if steps else None
        if found is None:
            return
        with self.lock:
            for counter in found[0].counters:
                if counter.carried_by(t):
                    counter.credited -= steps
                    counter.seen = t._version

    def swapped(self, t: torch.Tensor, op: str) -> Callable[[], None]:
        """`t` is about to get other memory (`t.data = new`, `t.set_`): Saves that are `t` itself lose theirs.

        Those of its version counter (`t.detach()`) keep it, and the counter goes on with `t`.
        """
        self.settle()
        found = self._timeline_of(t)
        if found is None:
            return _nothing

        def is_it(save: Save) -> bool:
            return save.original is not None and save.original() is t

        saves = [e for e in found[0].saves() if is_it(e) or same_counter(e.handle, t)]
        write = made_write(self.tick(), op, raw_here(), layout_of(t), "metadata")
        for save in saves:
            self._leave_counter(save)

        def done() -> None:
            new = _detach_unseen(t)
            for save in saves:
                save.swaps = (*save.swaps, (write, new if is_it(save) else save.handle))

        return done

    def detaching(self, t: torch.Tensor) -> Callable[[], None]:
        """`t.detach_()` is about to cut `t` from its graph: PyTorch refuses to hand it to a backward that kept it."""
        if t.is_leaf:
            return _nothing
        self.settle()
        found = self._timeline_of(t)
        if found is None:
            return _nothing
        made = number(t.grad_fn)  # this node keeps its own output, and needs no graph of it
        kept = [
            s for s in found[0].saves() if s.original is not None and s.original() is t and s.number != made
        ]

        def done() -> None:
            for save in kept:
                save.detached = True

        return done

    def _leave_counter(self, save: Save) -> None:
        """From now on only its bytes tell whether its memory changed unseen: its counter steps for other memory."""
        if save.uncredited():
            save.print = escapes.CHANGED
        elif save.print is None:
            value = self.value(save)
            save.print = escapes.fingerprint(save.handle if value is None else value)

    # ---------------------------------------------------------------- Escapes

    def escaped(self, t: torch.Tensor | torch.UntypedStorage, how: str) -> None:
        """Memory is being handed out beyond torch: from now on only its bytes tell whether it changed."""
        storage = t if isinstance(t, torch.UntypedStorage) else _storage_of(t)
        site = escapes.note(storage, how)
        self.settle()
        timeline = self.timelines.get(storage._cdata)
        if timeline is None:
            return
        for save in timeline.saves():
            if save.escape is None:
                save.escape = site
            if save.print is None:
                value = self.value(save)
                save.print = escapes.fingerprint(save.handle if value is None else value)

    def seal(self, scope: Scope, raw: Raw) -> None:
        """The taps are going away: from now on, only fingerprints can tell a Write that bumps no counter."""
        scope.left = raw
        self.settle()
        for timeline in list(self.timelines.values()):
            for save in timeline.saves():
                if save.scope is not scope:
                    continue
                if save.uncredited():
                    save.print = escapes.CHANGED  # before this line
                elif save.print is None:
                    value = self.value(save)
                    save.print = escapes.fingerprint(save.handle if value is None else value)

    # ---------------------------------------------------------------- Verdict

    def ask(self, save: Save, packed: object = None) -> torch.Tensor:
        """Backward wants a Save back: the value it shall have, or the exception that the policy raises.

        `packed` is what the node holds for it, where that is not the save itself.
        """
        if save.untouched():
            return save.handle
        if _modes() and seen():
            with unseen():
                return judge(self, save, packed)
        return judge(self, save, packed)

    def value(self, save: Save, tick: int | None = None) -> torch.Tensor | None:
        """The saved bytes as they were at the Save, or at `tick`, only to be read; None when no kept Write touched them."""
        timeline = save.timeline
        if timeline is None or not timeline.undo.records:
            return None
        if torch.is_grad_enabled():
            return without_grad(self.value, save, tick)
        with self.lock:
            if save.layout is None:
                timeline.settle()
            assert save.layout is not None
            storage = _storage_of(save.handle)
            at = save.tick if tick is None else tick
            value = timeline.undo.value(storage, save.layout, at, self.tick())
        if value is None:
            return None
        if save.handle.is_neg():
            value = torch._neg_view(value)
        return value.conj() if save.handle.is_conj() else value


def _is_result_of(save: Save, t: torch.Tensor) -> bool:
    return (save.original is not None and save.original() is t) or same_counter(save.handle, t)


def _nothing() -> None:
    pass
