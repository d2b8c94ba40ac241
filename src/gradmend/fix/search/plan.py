"""The loop: diagnose, propose, prove, and on to the next conflict, until plain PyTorch runs it right."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Any

from gradmend.errors import UsageError
from gradmend.fix.judging.compare import Verdict, effect
from gradmend.fix.judging.joined import Lines
from gradmend.fix.judging.judge import WORDS, Basis, Judge
from gradmend.fix.judging.oracle import CONFIRMED, Oracles
from gradmend.fix.rewrites import options, propose, recompute, save_for_backward, syntax
from gradmend.fix.search import blind, diagnose
from gradmend.fix.source import undoing
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.text import Text, read
from gradmend.fix.trials.runs import Run, Runner
from gradmend.fix.trials.scratch import user_files

_LONGER = 4  # times the plain run's time, for each trial
_ALL_TRIALS = 3  # times the limit of one trial, for all of them together
_DEPTH = 12  # conflicts fixed one after the other
_TRIALS = 60  # candidates tried for one conflict
_SIDE_BY_SIDE = 2 if (os.cpu_count() or 1) > 1 else 1
_STEPS = 4  # ways on from one program, when the first turn out to be dead ends


# Keeping the graph is not enough when parameters change between its two backward calls: then the author
# most likely meant a shorter gradient, and only the author can say which.
OPTIONS = (
    "ambiguous: this backward goes back into a graph made before the parameters were updated. Options:\n"
    "  1. detach() the state carried over (truncated backpropagation through time): gradients stop there; "
    "no extra memory\n"
    "  2. sum the losses and call backward() once, before the update: the whole gradient, at the old parameters; "
    "the graph of all steps stays in memory\n"
    "  3. compute the shared part again after the update: the gradient at the new parameters; one more forward\n"
    "each is another gradient, so none is chosen for you"
)


# What a copy of the parameters means there, by how an iteration reaches a graph of before the update.
FROZEN = {
    "once": "each step then uses the gradient of the first forward, however far the parameters have moved since",
    "carried": "each backward() then goes on through all earlier iterations, at the parameters that they had",
}


@dataclass(slots=True)
class Tried:
    candidate: Candidate
    verdict: Verdict
    step: bool = False  # fixed this conflict, others are left


@dataclass(frozen=True, slots=True)
class Solved:
    chosen: list[Candidate]
    verdict: Verdict
    judge: Judge  # the one that was asked in the end


@dataclass(frozen=True, slots=True)
class Option:
    """An edit that is left to the author: one that means another gradient, or does more than was asked."""

    candidate: Candidate
    sources: dict[str, str]
    told: str  # how its first difference shows
    proven: bool = False  # the same gradients


@dataclass(slots=True)
class Plan:
    """The end of the story: what to change, how it was proven, or why nothing is."""

    status: str  # clean, proven, unproven, stuck
    message: str = ""
    original: dict[str, Text] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)  # file -> new text, changed files only
    chosen: list[Candidate] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    basis: Basis | None = None
    verdict: Verdict | None = None
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    facts: Facts | None = None
    options: list[Option] = field(default_factory=list)
    seconds: float = 0.0  # what the plain run took
    seeded: bool = False  # it draws its seed from the clock: in the trials it was a fixed one
    joined: tuple[Lines, ...] = ()  # backward calls of the original that are one now


class Planner:
    def __init__(self, runner: Runner, tell: Callable[[str], None], seconds: float) -> None:
        self.runner, self.tell = runner, tell
        self.until = time.monotonic() + seconds
        self.texts: dict[str, Text] = {}
        self.tried: list[Tried] = []
        self.ambiguous = ""
        self.suspects: list[Facts] = []  # where no ledger saw the write
        self.by_copies = False  # edits that are right, and only ever an option, are tried too
        self.out_of_time = False
        self.obvious: list[Option] = []

    def plan(self) -> Plan:
        self.tell("running the program under plain PyTorch")
        plain = self.runner.run({}, "plain")
        self._take_time(plain)
        self._load(plain)
        done = self._not_ours(plain)
        if done is not None:
            return done
        self.tell("healing it")
        retain = {"retain": diagnose.is_second(plain), "limit": min(self.runner.steps, CONFIRMED)}
        healed, copies = self.runner.together([({}, "heal", {}), ({}, "copies", retain)])
        if healed.outcome == "late":
            return Plan("stuck", self._too_long("the healed run"))
        known = diagnose.facts_of(plain, healed)
        conflicts = healed.extra.get("conflicts", [])
        project = Project({f: t.text for f, t in self.texts.items()})
        if not known:
            hidden = blind.look(project) if plain.ran else None
            if hidden is not None:
                return self._blind(plain, project, hidden)
            if plain.ran and not healed.ran:
                return Plan("stuck", f"no conflict found, but the healed run ends otherwise: {healed.why}")
            if plain.ran:
                return Plan("clean", "nothing to fix: no conflict found")
            if diagnose.is_changed(plain):
                return Plan("unproven", f"no write was seen behind PyTorch's error: {plain.why}")
            return Plan("stuck", f"the program fails for another reason: {plain.why}")
        judge = Oracles(self.runner, self.tell, plain).choose(healed, known, copies)
        if isinstance(judge, str):
            return self._unproven(judge, project, known[0], conflicts)
        if plain.ran and judge.final(plain, {}).same:
            return Plan("clean", f"nothing to fix: the gradient equals {WORDS[judge.basis]}")
        found = self._search(judge, project, plain, healed)
        found.seeded, found.seconds = bool(plain.extra.get("seeded")), plain.seconds
        found.original, found.tried, found.conflicts = self.texts, self.tried, conflicts
        found.basis, found.facts = judge.basis, known[0]
        self._add_options(found, judge, project, known)
        self._add_frozen(found, judge, project, known[0])
        found.options += self.obvious
        return found

    def _add_options(self, plan: Plan, judge: Judge, project: Project, known: list[Facts]) -> None:
        """Other gradients that the author may have meant: found, run, and left to them."""
        if plan.status == "proven":
            self._add_guards(plan, judge, project, known)
        if self.ambiguous:
            ways = [c for f in known for c in options.carried(project, f)]
        elif known[0].rule in diagnose.UPDATES and not any(c.kind == "recompute" for c in plan.chosen):
            ways = list(recompute.propose(project, known[0]))
        else:
            return
        for candidate in ways[:_STEPS]:
            if time.monotonic() > self.until or judge.oracle is None:
                return
            self.tell(candidate.title)
            edited = project.edited(candidate.sources)
            trial = self.runner.run(self._bytes(edited), "plain")
            if not trial.ran:
                continue
            told = effect(judge.oracle.calls, trial.calls)
            sources = self._changed(edited)
            plan.options.append(Option(candidate, sources, told))
            if self.ambiguous:
                plan.chosen, plan.sources = [candidate], sources  # for --unsafe: the author said so
            return

    def _add_frozen(self, plan: Plan, judge: Judge, project: Project, facts: Facts) -> None:
        """A copy of the parameters for the one forward that all iterations go back into: quiet, and seldom what is meant."""
        if not judge.again or not _of_parameters(facts):
            return
        for candidate in options.made_once(project, facts):
            if time.monotonic() > self.until or judge.oracle is None:
                break
            self.tell(candidate.title)
            edited = project.edited(candidate.sources)
            trial = self.runner.run(self._bytes(edited), "plain")
            if trial.ran:
                told = effect(judge.oracle.calls, trial.calls)
                plan.options.append(Option(candidate, self._changed(edited), told))
                break
        for candidate in [c for c in propose(project, facts) if c.kind == "clone_save"][:_STEPS]:
            if time.monotonic() > self.until:
                return
            self.tell(candidate.title)
            edited = project.edited(candidate.sources)
            encoded = self._bytes(edited)
            if judge.final(self.runner.run(encoded, "plain"), encoded).same:
                noted = replace(candidate, note=FROZEN[judge.again])
                plan.options.append(Option(noted, self._changed(edited), "the gradients of the healed run"))
                return

    def _add_guards(self, plan: Plan, judge: Judge, project: Project, known: list[Facts]) -> None:
        """The fixed program with save_for_backward: proven too, and more than the fix needs."""
        if any(c.kind == "custom_function" for c in plan.chosen):
            return  # a copy of its own needs no guard
        fixed = project.edited(plan.sources)
        for candidate in save_for_backward.guarded(fixed, known):
            self.tell(candidate.title)
            edited = fixed.edited(candidate.sources)
            encoded = self._bytes(edited)
            if judge.final(self.runner.run(encoded, "plain"), encoded).same:
                told = "the same gradients; the fix of the write is still needed"
                plan.options.append(Option(candidate, self._changed(edited), told, proven=True))

    def _blind(self, plain: Run, project: Project, hidden: blind.Blind) -> Plan:
        """No conflict seen, but part of the program is out of sight: ask the differences."""
        oracles = Oracles(self.runner, self.tell, plain)
        judge = oracles.differences() if hidden.suspects else "nothing is written in place"
        if isinstance(judge, str):
            return Plan("clean", f"no conflict found; {hidden.part} could not be checked: {judge}")
        if judge.final(plain, {}).same:
            return Plan("clean", f"nothing to fix: the gradient equals {WORDS[judge.basis]}")
        self.suspects = hidden.suspects
        found = self._search(judge, project, plain, Run("finished"))
        if hidden.meant and found.status != "proven":
            return Plan("clean", f"no conflict found; {hidden.meant}")
        found.original, found.tried = self.texts, self.tried
        found.basis, found.facts = judge.basis, hidden.suspects[0]
        return found

    def _unproven(self, why: str, project: Project, facts: Facts, conflicts: list[dict[str, Any]]) -> Plan:
        """No oracle: the first edit that plain PyTorch runs, shown as what it is."""
        plan = Plan("unproven", why, self.texts, conflicts=conflicts, facts=facts)
        for candidate in propose(project, facts)[:10]:
            if time.monotonic() > self.until or "deterministic" in why:
                break
            self.tell(candidate.title)
            edited = project.edited(candidate.sources)
            if self.runner.run(self._bytes(edited), "plain").ran:
                plan.chosen = [candidate]
                plan.sources = self._changed(edited)
                break
        return plan

    def _take_time(self, plain: Run) -> None:
        """A limit that grows with the program: a healed run takes longer than a plain one, which may stop early."""
        self.runner.seconds = max(self.runner.seconds, _LONGER * plain.seconds)
        self.until = max(self.until, time.monotonic() + _ALL_TRIALS * self.runner.seconds)

    def _too_long(self, what: str) -> str:
        return f"{what} did not end within {self.runner.seconds:.0f} s: give trials more by --time-limit"

    # -- first looks -------------------------------------------------------------------------------
    def _load(self, plain: Run) -> None:
        files = [f for f in plain.extra.get("files", []) if self.runner.scratch.editable(f)]
        script = str(self.runner.scratch.script)
        for file in dict.fromkeys([script, *user_files(files)]):
            try:
                self.texts[file] = read(file)
                compile(self.texts[file].text, file, "exec", dont_inherit=True)
            except SyntaxError as why:
                raise UsageError(f"{file}:{why.lineno}: cannot parse: {why.msg}") from None
            except UsageError:
                if file == script:
                    raise

    def _not_ours(self, plain: Run) -> Plan | None:
        if plain.outcome == "late":
            seconds = f"{self.runner.seconds:g}"
            return Plan(
                "stuck",
                f"the program neither ends nor makes {self.runner.steps} backward calls in {seconds} s: give trials more "
                "by --time-limit",
            )
        if plain.error and plain.error.get("type") == "EOFError":
            return Plan("stuck", "the program asks for input, which a trial run has none of")
        if (
            plain.error
            and plain.error.get("type") == "PermissionError"
            and "trial run" in plain.error["message"]
        ):
            return Plan("stuck", plain.error["message"])
        if plain.error and not diagnose.is_ours(plain):
            told = diagnose.sparse_words(plain)
            if told:
                return Plan("stuck", told)
            return Plan("stuck", f"the program fails for another reason: {plain.why}{plain.place}")
        return None

    # -- the search --------------------------------------------------------------------------------
    def _search(self, judge: Judge, project: Project, plain: Run, healed: Run) -> Plan:
        found = self._solve(judge, project, plain, healed, [])
        if found is None and judge.stale:
            self.ambiguous = OPTIONS
        if found is None:
            why = "no candidate was proven"
            if self.out_of_time:
                why = self._too_long("the search")
            return Plan("unproven", self.ambiguous or why)
        steps = [project]
        for candidate in found.chosen:
            steps.append(steps[-1].edited(candidate.sources))
        found, project = self._smallest(found, steps)
        changed = self._changed(project)
        return Plan(
            "proven", sources=changed, chosen=found.chosen, verdict=found.verdict, joined=found.judge.joined
        )

    def _smallest(self, found: Solved, steps: list[Project]) -> tuple[Solved, Project]:
        """Copies that were found one after the other: a later one may have made an earlier one needless."""
        at = 1
        while len(steps) > 2 and at < len(steps) and all(c.kind in _COPIES for c in found.chosen):
            if time.monotonic() > self.until:
                break
            try:
                left = undoing.without(steps, at)
            except ValueError:
                at += 1
                continue
            self.tell(f"without: {found.chosen[at - 1].title}")
            sources = self._bytes(left[-1])
            verdict = found.judge.final(self.runner.run(sources, "plain", **found.judge.bounds), sources)
            if verdict.same and (verdict.exact or not found.verdict.exact):
                chosen = [c for n, c in enumerate(found.chosen, 1) if n != at]
                found, steps = Solved(chosen, verdict, found.judge), left
            else:
                at += 1
        return found, steps[-1]

    def _solve(
        self, judge: Judge, project: Project, plain: Run, healed: Run, chosen: list[Candidate]
    ) -> Solved | None:
        """Edits that end in a proof: at once, or by way of programs with less left to fix."""
        if len(chosen) >= _DEPTH:
            return None
        if chosen and chosen[-1].kind == "second_backward" and not diagnose.is_second(plain):
            self.ambiguous = OPTIONS
            return None
        second_best: Solved | None = None
        steps = 0
        for facts in self.suspects or diagnose.facts_of(plain, healed)[:3]:
            for candidate, speaks, sources, trial in self._trials(judge, project, facts, chosen):
                if second_best is not None and _is_update(second_best) and candidate.kind != "move":
                    return second_best  # what is left costs more than a reviewer would take
                edited = project.edited(candidate.sources)
                moved = any(c.kind == "move" for c in [*chosen, candidate])
                if candidate.kind == "recompute":
                    verdict = speaks.recomputed(trial, sources, facts.second or bool(judge.again))
                else:
                    verdict = speaks.final(trial, sources, moved)
                self.tried.append(Tried(candidate, verdict))
                if verdict.same and (verdict.exact or self._is_unread(verdict, project, edited)):
                    return Solved([*chosen, candidate], verdict, speaks)
                if verdict.same:
                    if second_best is None and _tellable(candidate, verdict):
                        second_best = Solved([*chosen, candidate], verdict, speaks)
                    continue
                self._note_obvious(candidate, trial, judge, edited)
                if second_best is not None or steps >= _STEPS:
                    continue
                after = self._progress(speaks, sources, plain, trial, healed, judge.done(plain))
                if after is not None:
                    self.tried[-1].step = True
                    steps += 1
                    found = self._solve(speaks, edited, trial, after, [*chosen, candidate])
                    if found is not None or self.ambiguous:
                        return found
            if second_best is not None:
                break
        return second_best

    def _note_obvious(self, candidate: Candidate, trial: Run, judge: Judge, edited: Project) -> None:
        """The edit that one would write first runs, and changes what the forward computes: for the author to choose."""
        if candidate.kind in _OBVIOUS and trial.ran and judge.oracle is not None and not self.obvious:
            told = effect(judge.oracle.calls, trial.calls)
            if told.startswith("the loss"):
                note = "the forward computes something else"
                self.obvious.append(Option(replace(candidate, note=note), self._changed(edited), told))

    def _trials(
        self, judge: Judge, project: Project, facts: Facts, chosen: list[Candidate]
    ) -> Iterator[tuple[Candidate, Judge, dict[str, bytes], Run]]:
        """Each candidate with its run under plain PyTorch, in order of rank; made a few at a time, side by side."""
        found = [c for c in propose(project, facts)[:_TRIALS] if self._is_wanted(c, judge, facts, chosen)]
        first, width = 0, 1  # the first is nearly always the one; only then are several worth their time
        while first < len(found):
            if time.monotonic() > self.until:
                self.out_of_time = True
                return
            batch = []
            for candidate in found[first : first + width]:
                speaks = self._judge_of(judge, project, candidate)
                if speaks is not None:
                    batch.append((candidate, speaks, self._bytes(project.edited(candidate.sources))))
            if batch:
                self.tell(f"trial {first + 1} of {len(found)}: {batch[0][0].title}")
                runs = self.runner.together([(sources, "plain", dict(s.bounds)) for _, s, sources in batch])
                for (candidate, speaks, sources), trial in zip(batch, runs, strict=True):
                    yield candidate, speaks, sources, trial
            first, width = first + width, _SIDE_BY_SIDE

    def _is_wanted(self, candidate: Candidate, judge: Judge, facts: Facts, chosen: list[Candidate]) -> bool:
        kind = candidate.kind
        if judge.again and kind not in _UPDATED and _of_parameters(facts):
            return False  # the gradient would never see an update
        if kind == "no_grad":
            return judge.basis == "update"  # else it would cut what is part of the forward
        if kind == "clone_parameters":
            return (
                facts.rule not in diagnose.UPDATES or self.by_copies
            )  # right, and nothing that a reviewer would take
        if kind == "recompute":
            fits = judge.stale if facts.second else facts.rule in diagnose.UPDATES or bool(judge.again)
            return judge.oracle is not None and not chosen and fits
        if kind == "second_backward":
            return not judge.stale or self.by_copies  # it would go on with a graph of before the update
        return True

    def _is_unread(self, verdict: Verdict, project: Project, edited: Project) -> bool:
        """Does the edit leave nothing else behind but a name that nobody reads any more?"""
        if not all(c.startswith("named:") for c in verdict.changed):
            return False
        names = {re.split(r"\W", c.partition(":")[2])[0] for c in verdict.changed}
        for file, text in edited.sources.items():
            tree = project.tree(file)
            if tree is None or text == project.sources[file]:
                continue
            old, new = tree.text.splitlines(), text.splitlines()
            changes = [
                c for c in SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if c[0] != "equal"
            ]
            for _, first, last, _, _ in changes:
                for line in range(first + 1, max(last, first + 1) + 1):
                    for statement in tree.statements(line):
                        if any(syntax.used_after(tree, statement, name) for name in names):
                            return False
        return True

    def _judge_of(self, judge: Judge, project: Project, candidate: Candidate) -> Judge | None:
        """An edit that joins backward calls is compared with the sum of what they gave."""
        if not candidate.joined:
            return judge
        original = Project({f: t.text for f, t in self.texts.items()})
        return judge.joining(project.lines_before(candidate.joined, original))

    def _progress(
        self, judge: Judge, sources: dict[str, bytes], plain: Run, trial: Run, healed: Run, done: int
    ) -> Run | None:
        """Is less left to fix, and nothing changed so far? Then the healed run of the edited program.
        `done`: backward calls that the program got through before."""
        if trial.error and not diagnose.is_ours(trial):
            return None
        after = self.runner.run(sources, "heal")
        if after.error and not diagnose.is_ours(after):
            return None  # less was found because it broke before that
        if not judge.so_far(after).same or not diagnose.facts_of(trial, after):
            return None
        refused = diagnose.is_refused(plain) and (not diagnose.is_refused(trial) or _other_line(plain, trial))
        second = diagnose.is_second(plain) and (not diagnose.is_second(trial) or judge.done(trial) > done)
        if second or refused or diagnose.weight(after) < diagnose.weight(healed):
            return after
        return None

    def _bytes(self, project: Project) -> dict[str, bytes]:
        return {f: self.texts[f].encode(s) for f, s in self._changed(project).items()}

    def _changed(self, project: Project) -> dict[str, str]:
        return {f: s for f, s in project.sources.items() if s != self.texts[f].text}


def _other_line(plain: Run, trial: Run) -> bool:
    """Both forwards are refused, the edited one at another place."""
    if not (diagnose.is_refused(plain) and diagnose.is_refused(trial)):
        return False
    a, b = plain.chain()[:1], trial.chain()[:1]
    return bool(a and b) and (a[0].file, a[0].line) != (b[0].file, b[0].line)


_OBVIOUS = frozenset({"rebind", "inplace_flag", "functional", "out_argument"})
_COPIES = frozenset({"clone_save", "clone_write", "inplace_flag", "rebind", "functional"})
_UPDATED = ("move", "recompute")  # they say where an update belongs


def _is_update(found: Solved) -> bool:
    return found.chosen[-1].kind in _UPDATED


def _of_parameters(facts: Facts) -> bool:
    return facts.rule in diagnose.UPDATES or (facts.saved is not None and facts.saved.leaf)


def _tellable(candidate: Candidate, verdict: Verdict) -> bool:
    """May a fix be offered that leaves other things behind? A moved update may: it names what it applies.
    Otherwise only if no parameter, buffer or output differs."""
    parts = {c.partition(":")[0] for c in verdict.changed}
    return candidate.kind in _UPDATED or parts <= {"named"}


__all__ = ["Option", "Plan", "Planner", "Tried"]
