"""The search: candidates in order of rank, each judged, one conflict after the other, until one program is proven."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from gradmend.fix.judging.compare import Verdict, effect
from gradmend.fix.judging.judge import Judge
from gradmend.fix.rewrites import propose, syntax
from gradmend.fix.search import diagnose
from gradmend.fix.search.attempts import Attempts
from gradmend.fix.search.outcome import Option, Tried
from gradmend.fix.source import undoing
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import UPDATES, Facts
from gradmend.fix.trials.runs import Run

_DEPTH = 12  # conflicts fixed one after the other
_TRIALS = 60  # candidates tried for one conflict
_SIDE_BY_SIDE = 2 if (os.cpu_count() or 1) > 1 else 1
_STEPS = 4  # ways on from one program, when the first turn out to be dead ends


@dataclass(frozen=True, slots=True)
class Solved:
    chosen: list[Candidate]
    verdict: Verdict
    judge: Judge  # the one that was asked in the end


class Solver:
    def __init__(self, attempts: Attempts, suspects: list[Facts]) -> None:
        self.attempts = attempts
        self.suspects = suspects  # where no ledger saw the write
        self.scripted: list[Facts] = []  # where a compiled function may have written
        self.tried: list[Tried] = []
        self.obvious: list[Option] = []
        self.ambiguous = False  # only the author can say which gradient is meant
        self.out_of_time = False

    def solve(self, judge: Judge, project: Project, plain: Run, healed: Run) -> tuple[Solved, Project] | None:
        found = self._solve(judge, project, plain, healed, [])
        if found is None:
            self.ambiguous = self.ambiguous or judge.stale
            return None
        steps = [project]
        for candidate in found.chosen:
            steps.append(steps[-1].edited(candidate.sources))
        return self.smallest(found, steps)

    def smallest(self, found: Solved, steps: list[Project]) -> tuple[Solved, Project]:
        """Copies that were found one after the other: a later one may have made an earlier one needless."""
        at = 1
        while len(steps) > 2 and at < len(steps) and all(c.kind in _COPIES for c in found.chosen):
            if self.attempts.late:
                break
            try:
                left = undoing.without(steps, at)
            except ValueError:
                at += 1
                continue
            self.attempts.tell(f"without: {found.chosen[at - 1].title}")
            sources = self.attempts.encoded(left[-1])
            verdict = found.judge.final(
                self.attempts.runner.run(sources, "plain", **found.judge.bounds), sources
            )
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
            self.ambiguous = True
            return None
        second_best: Solved | None = None
        steps = 0
        for facts in self.suspects or [*self.scripted, *diagnose.facts_of(plain, healed)[:3]]:
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
                self.obvious.append(
                    Option(replace(candidate, note=note), self.attempts.changed(edited), told)
                )

    def _trials(
        self, judge: Judge, project: Project, facts: Facts, chosen: list[Candidate]
    ) -> Iterator[tuple[Candidate, Judge, dict[str, bytes], Run]]:
        """Each candidate with its run under plain PyTorch, in order of rank; made a few at a time, side by side."""
        found = [c for c in propose(project, facts)[:_TRIALS] if self._is_wanted(c, judge, facts, chosen)]
        first, width = 0, 1  # the first is nearly always the one; only then are several worth their time
        while first < len(found):
            if self.attempts.late:
                self.out_of_time = True
                return
            batch = []
            for candidate in found[first : first + width]:
                speaks = self._judge_of(judge, project, candidate)
                if speaks is not None:
                    batch.append(
                        (candidate, speaks, self.attempts.encoded(project.edited(candidate.sources)))
                    )
            if batch:
                self.attempts.tell(f"trial {first + 1} of {len(found)}: {batch[0][0].title}")
                runs = self.attempts.runner.together(
                    [(sources, "plain", dict(s.bounds)) for _, s, sources in batch]
                )
                for (candidate, speaks, sources), trial in zip(batch, runs, strict=True):
                    yield candidate, speaks, sources, trial
            first, width = first + width, _SIDE_BY_SIDE

    def _is_wanted(self, candidate: Candidate, judge: Judge, facts: Facts, chosen: list[Candidate]) -> bool:
        kind = candidate.kind
        if judge.basis == "cut":
            return kind in ("boundary", "history")
        if kind == "boundary":
            return False  # it would cut what the oracle trains through
        if judge.again and kind not in _UPDATED and facts.of_parameters:
            return False  # the gradient would never see an update
        if kind == "no_grad":
            return judge.basis == "update"  # else it would cut what is part of the forward
        if kind == "clone_parameters":
            # There it is right, and nothing that a reviewer would take.
            return facts.rule not in UPDATES
        if kind == "recompute" and judge.several and not facts.second:
            return False  # a later agent's loss would be another one: for the author to choose
        if kind == "recompute":
            once = facts.carrier is None or facts.carrier.how in ("once", "shared")
            fits = judge.stale and once if facts.second else facts.rule in UPDATES or bool(judge.again)
            return judge.oracle is not None and not chosen and fits
        if kind == "second_backward":
            return not judge.stale  # it would go on with a graph of before the update
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
        original = self.attempts.original()
        return judge.joining(project.lines_before(candidate.joined, original))

    def _progress(
        self, judge: Judge, sources: dict[str, bytes], plain: Run, trial: Run, healed: Run, done: int
    ) -> Run | None:
        """Is less left to fix, and nothing changed so far? Then the healed run of the edited program.
        `done`: backward calls that the program got through before."""
        if trial.error and not diagnose.is_ours(trial):
            return None
        after = self.attempts.runner.run(sources, "heal")
        if after.error and not diagnose.is_ours(after):
            return None  # less was found because it broke before that
        if not judge.so_far(after).same or not diagnose.facts_of(trial, after):
            return None
        refused = diagnose.is_refused(plain) and (not diagnose.is_refused(trial) or _other_line(plain, trial))
        second = diagnose.is_second(plain) and (not diagnose.is_second(trial) or judge.done(trial) > done)
        if second or refused or diagnose.weight(after) < diagnose.weight(healed):
            return after
        return None


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


def _tellable(candidate: Candidate, verdict: Verdict) -> bool:
    """May a fix be offered that leaves other things behind? A moved update may: it names what it applies.
    Otherwise only if no parameter, buffer or output differs."""
    parts = {c.partition(":")[0] for c in verdict.changed}
    return candidate.kind in _UPDATED or parts <= {"named"}
