"""watch() and heal(): the ledger's two policies, as context managers and decorators."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextlib import ContextDecorator, ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar, overload

from gradmend.api import installing
from gradmend.api.interrupts import HeldBack
from gradmend.capture.graph import calls
from gradmend.capture.graph.calls import BackwardCall, Roots
from gradmend.capture.hooks import arming, retaining, saved_tensors
from gradmend.capture.ledger.findings import Finding, SilentFinding
from gradmend.capture.ledger.scopes import Policy, Scope, Tallies, Tally
from gradmend.capture.ledger.unguarded import Read
from gradmend.capture.memory.budget import parse
from gradmend.capture.sites import Raw, raw_here, resolve
from gradmend.capture.taps import switch
from gradmend.capture.taps.hub import LEDGER
from gradmend.compat import trust
from gradmend.errors import ConflictError, GradmendError, GradmendWarning, attached
from gradmend.frames import leave_out_ours
from gradmend.model import Conflict, Culprit, Frame, Session
from gradmend.own_imports import own_imports
from gradmend.uncollected import uncollected


class Teller:
    """Hears every finding of one scope, and keeps the Session: each cause once, with how often it came."""

    def __init__(self, policy: Policy, aloud: bool = True) -> None:
        self.policy = policy
        self.aloud = aloud  # warn of what stops nobody; the command line tells it at the end instead
        self.session = Session()
        self.heard: Callable[[], None] | None = None  # called after each conflict that is new, or that stops
        self.closed = False
        self._known: dict[Any, Tally] = {}
        self._doubts: set[object] = set()
        self._words: dict[object, str] = {}
        # The same, of the commonest kinds, by the lines of Save and Write alone.
        self.healed: Tallies = {}
        self.spared: Tallies = {}

    def __call__(self, finding: Finding | SilentFinding) -> BaseException | None:
        known = len(self.session.conflicts)
        error = self._enter(finding)
        if self.heard is not None and (error is not None or len(self.session.conflicts) > known):
            self.heard()
        return error

    def _enter(self, finding: Finding | SilentFinding) -> BaseException | None:
        if isinstance(finding, SilentFinding):
            return self._stop(finding)
        save, first = finding.save, finding.first
        key = (
            save.raw,
            first.raw if first else None,
            finding.slot,
            finding.harmful,
            finding.cause,
        )
        known = self._known.get(key)
        if known is None:
            with uncollected(), own_imports():
                from gradmend.story.linking import link

                conflict = link(finding)
            known = self._known[key] = [len(self.session.conflicts), 1, 0]
            self.session.conflicts.append(conflict)
            if finding.cause == "write" and first and not isinstance(save, Read):
                if finding.harmful:
                    self.healed[save.raw, first.raw] = known
                elif not finding.changed:
                    self.spared[save.raw, first.raw] = known
        else:
            known[1] += 1
        if finding.harmful and first is not None and not first.counted:
            known[2] += finding.kept
            first.counted = True
        if known[1] > 1 and self.closed:
            self.count()
        if not finding.harmful:
            if known[1] == 1:
                self._warn(self.session.conflicts[known[0]])
            return None
        # What a checkpointed region reads again is read where it lies: no old value can be put there.
        healable = finding.cause in ("write", "swap") and not isinstance(save, Read)
        if self.policy == "heal" and healable:
            if known[1] == 1:
                self._healed(self.session.conflicts[known[0]])
            return None
        self.session.outcome = "conflict"
        self.count()
        return self._error(finding, key)

    def _error(self, finding: Finding, key: object) -> ConflictError:
        """A loop may catch a thousand of one kind: its words are found once, which takes milliseconds."""
        from gradmend.story.linking import versions_of

        at = self._known[key][0]
        conflict = self.session.conflicts[at]
        words = self._words.get(key)
        if words is None:
            words = self._words[key] = words_of(conflict)
        if conflict.versions != (now := versions_of(finding)):
            conflict = self.session.conflicts[at] = replace(conflict, versions=now)
        return ConflictError(words, conflict)

    def count(self) -> None:
        """Enter how often each conflict came; a loop finds thousands, so not each time."""
        for at, times, kept in self._known.values():
            conflict = self.session.conflicts[at]
            bytes_ = kept if conflict.kind != "refused-but-right" else 0
            # Else it stays the same object: an error holds it.
            if (conflict.times, conflict.healed_bytes) != (times, bytes_):
                self.session.conflicts[at] = replace(conflict, times=times, healed_bytes=bytes_)

    def _stop(self, finding: SilentFinding) -> BaseException | None:
        """What no old value can heal: under either policy, the program stops here, save for a few."""
        with own_imports():
            from gradmend.story.silent import link_silent, plausible

            if not plausible(finding):
                return None
            if finding.doubt:
                if finding.key not in self._doubts:
                    self._doubts.add(finding.key)
                    conflict = link_silent(finding)
                    _warn_at(conflict.culprits[0] if conflict.culprits else None, conflict.message)
                return None
            healed = finding.healed and self.policy == "heal"
            known = self._known.get(finding.key)
            if known is not None and healed:
                known[1] += 1
                return None
            conflict = link_silent(finding)
        self._known[finding.key] = [len(self.session.conflicts), 1, 0]
        self.session.conflicts.append(conflict)
        if healed:
            self._healed(conflict)
            return None
        self.session.outcome = "conflict"
        return ConflictError(words_of(conflict), conflict)

    def _healed(self, conflict: Conflict) -> None:
        if self.session.outcome == "clean":
            self.session.outcome = "healed"
        self._warn(conflict, "healed: ")

    def _warn(self, conflict: Conflict, before: str = "") -> None:
        """One warning for each cause, at its line: nothing is done behind the user's back."""
        if self.aloud:
            _warn_at(
                conflict.culprits[0] if conflict.culprits else conflict.backward, before + conflict.message
            )

    def refused(self, error: RuntimeError, raw: Raw) -> None:
        """A call that PyTorch refuses in forward was made by other words."""
        known = self._known.get(raw)
        if known is not None:
            known[1] += 1
            return
        with own_imports():
            from gradmend.story.failures.diagnosing import diagnose

            conflict = diagnose(error, at=resolve(raw))
        if conflict is not None:
            self._known[raw] = [len(self.session.conflicts), 1, 0]
            self.session.conflicts.append(conflict)
            self._healed(conflict)

    def again(self, call: BackwardCall, roots: Roots, times: int) -> None:
        """A backward went through a graph that PyTorch would have freed: told once for each line, and if it grows."""
        with own_imports():
            from gradmend.story.failures.second_backward import diagnose, growing

            conflict = diagnose(call.site, roots=roots, history=calls.history, kept=call)
        if times == 1:
            self.session.conflicts.append(conflict)
            self._healed(conflict)
        else:
            _warn_at(conflict.backward, growing(conflict, times))


def _warn_at(place: Culprit | Frame | None, words: str) -> None:
    file, line = (place.file, place.line) if place is not None else ("<unknown>", 0)
    from gradmend.report.excerpt import harmless

    warnings.warn_explicit(f"gradmend: {harmless(words)}", GradmendWarning, file, line)


def words_of(conflict: Conflict, *, colour: bool = False, width: int = 100, healed: bool = False) -> str:
    """The whole story of a conflict as text."""
    with own_imports():
        from gradmend.report.terminal import render
        from gradmend.story.telling import tell
        from gradmend.story.words import ours_failed

        try:
            return render(tell(conflict, healed), colour=colour, width=width)
        except Exception as ours:
            return f"error[{conflict.rule}]: {conflict.message}\n   = note: {ours_failed(ours)}"


class Watching(ContextDecorator):
    """What watch() and heal() return: enter it with `with`, or put it above a function."""

    def __init__(
        self,
        policy: Policy,
        budget: int | None = None,
        paranoid: bool = False,
        retain: bool = False,
        aloud: bool = True,
    ) -> None:
        self._policy: Policy = policy
        self._budget = budget
        self._paranoid = paranoid
        self._retain = retain
        self._aloud = aloud
        self._open: list[tuple[Scope, Teller, ExitStack]] = []

    def __call__(self, function: Any) -> Any:
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            kind = "a coroutine"
        elif inspect.isgeneratorfunction(function):
            kind = "a generator"
        else:
            return super().__call__(function)
        raise GradmendError(
            f"gradmend.{self._policy}() above {kind} would be left before its first line runs: "
            f"write `with gradmend.{self._policy}():` around the training step instead"
        )

    @property
    def scope(self) -> Scope:
        """The innermost that is open."""
        return self._open[-1][0]

    def at_each(self, heard: Callable[[], None]) -> None:
        """Call it at each conflict that the innermost hears of: this process may be ended at any time."""
        self._open[-1][1].heard = heard

    def count(self) -> None:
        """Enter how often each conflict came so far."""
        for _, teller, _ in self._open:
            teller.count()

    def __enter__(self) -> Session:
        trust.require(self._policy)
        teller = Teller(self._policy, self._aloud)
        healed = teller.healed if self._policy == "heal" else None
        again = teller.again if self._retain else None
        scope = Scope(self._policy, teller, self._budget, self._paranoid, healed, teller.spared, again)
        scope.refused = teller.refused if self._policy == "heal" else None
        if self._budget is not None:
            LEDGER.budgets = True
        way_back = ExitStack()
        held = HeldBack()
        try:
            with switch.lock:
                way_back.callback(switch.disarm)
                switch.arm()
                saved_tensors.open_scope(scope)
                way_back.callback(installing.ignore_backwards)
                installing.hear_backwards()
                way_back.callback(arming.disarm)
                arming.arm()
            self._open.append((scope, teller, way_back))
        except BaseException:
            saved_tensors.close_scope(scope)
            way_back.close()
            held.release()
            raise
        try:
            held.release()
        except BaseException:  # an interrupt that came meanwhile: nobody will call __exit__
            self._close()
            raise
        return teller.session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            installing.explain_forward(error)
            if self._aloud and (isinstance(error, GradmendError) or (error and attached(error))):
                leave_out_ours(error)
        finally:  # interrupted while it reads sources, too
            self._close()

    def _close(self) -> None:
        try:
            held = HeldBack()
        except BaseException:  # interrupted just now
            self._take_off()
            raise
        try:
            self._take_off()
        finally:
            held.release()

    def _take_off(self) -> None:
        scope, teller, way_back = self._open.pop()
        try:
            teller.count()
            teller.closed = True
            scope.healed = scope.spared = None  # from now on each is told to the Session at once
            saved_tensors.close_scope(scope)
            LEDGER.seal(scope, raw_here())
        finally:
            with switch.lock:
                if self._retain:
                    way_back.callback(retaining.forget)
                way_back.close()


_F = TypeVar("_F", bound=Callable[..., Any])


@overload
def watch(function: _F, /) -> _F: ...
@overload
def watch(*, paranoid: bool = False) -> Watching: ...
def watch(function: Callable[..., Any] | None = None, /, *, paranoid: bool = False) -> Any:
    """Raise at the first value that backward needs and that has changed, with the whole story.

    >>> import torch, gradmend
    >>> x = torch.ones(3, requires_grad=True)
    >>> with gradmend.watch():
    ...     y = x.exp()
    ...     y += 1
    ...     y.sum().backward()
    Traceback (most recent call last):
    ...
    gradmend.errors.ConflictError: ...

    Above a function, `@gradmend.watch` and `@gradmend.watch(paranoid=True)` watch each call of it.
    """
    watching = Watching("watch", paranoid=paranoid)
    return watching if function is None else watching(function)


@overload
def heal(budget: _F, /) -> _F: ...
@overload
def heal(budget: int | str | None = None, *, paranoid: bool = False, retain: bool = False) -> Watching: ...
def heal(budget: Any = None, *, paranoid: bool = False, retain: bool = False) -> Any:
    """Give backward every value as it was when it was saved: the gradient of the forward that really ran.

    `budget` bounds the old values kept, in bytes or as "512MB". `retain` keeps graphs until nobody holds them, so that a
    second backward goes through what the first one would have freed. What can't be healed raises, with its story.
    `@gradmend.heal` above a function heals each call of it.
    """
    if callable(budget):
        return Watching("heal", None, paranoid, retain)(budget)
    return Watching("heal", parse(budget), paranoid, retain)


__all__ = ["Teller", "Watching", "heal", "watch", "words_of"]
