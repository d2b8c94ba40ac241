"""What is left to the author: edits that mean another gradient, or do more than was asked. Each is run, none is chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gradmend.fix.judging.compare import effect
from gradmend.fix.judging.judge import Judge
from gradmend.fix.rewrites import options, propose, recompute, save_for_backward, second_backward
from gradmend.fix.search.attempts import Attempts
from gradmend.fix.search.outcome import Option, Plan
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import UPDATES, Facts

CONSTANT = (
    "ambiguous: the loss is made of a gradient that torch.autograd.grad took. create_graph=True lets the loss train "
    "through it (a second derivative), retain_graph=True takes it for a constant: each is another gradient, so none is "
    "chosen for you"
)
_WAYS = 4  # edits tried for one choice

# What a copy of the parameters means there, by how an iteration reaches a graph of before the update.
FROZEN = {
    "once": "each step then uses the gradient of the first forward, however far the parameters have moved since",
    "carried": "each backward() then goes on through all earlier iterations, at the parameters that they had",
}


class Choices:
    def __init__(self, attempts: Attempts, judge: Judge, project: Project, known: list[Facts]) -> None:
        self.attempts, self.judge, self.project, self.known = attempts, judge, project, known

    def add(self, plan: Plan, ambiguous: bool) -> None:
        if plan.status == "proven" and any(c.kind == "second_backward" for c in plan.chosen):
            self._differentiated(plan)
        if plan.status == "proven":
            self._guarded(plan)
        if ambiguous:
            ways = [c for f in self.known for c in options.carried(self.project, f)]
        elif self.known[0].rule in UPDATES and not any(c.kind == "recompute" for c in plan.chosen):
            ways = list(recompute.propose(self.project, self.known[0]))
        else:
            ways = []
        found = self._first_that_runs(ways[:_WAYS])
        if found is not None:
            plan.options.append(found)
            if ambiguous:
                plan.chosen, plan.sources = (
                    [found.candidate],
                    found.sources,
                )  # for --unsafe: the author said so
        if self.judge.again and self.known[0].of_parameters:
            self._frozen(plan)
        if plan.status != "proven" and self.known[0].rule in UPDATES:
            moves = [c for c in propose(self.project, self.known[0]) if c.kind == "move"]
            moved = self._first_that_runs(moves[:_WAYS])
            if moved is not None:
                plan.options.append(moved)

    def _first_that_runs(self, ways: Iterable[Candidate]) -> Option | None:
        for candidate in ways:
            if self.attempts.late or self.judge.oracle is None:
                return None
            edited, trial = self.attempts.run(self.project, candidate)
            if trial.ran and edited != self.project:
                told = effect(self.judge.oracle.calls, trial.calls)
                return Option(candidate, self.attempts.changed(edited), told)
        return None

    def _differentiated(self, plan: Plan) -> None:
        """`u_x = grad(u, x)` in a loss: with the graph kept u_x is a constant, and training never learns from it."""
        assert self.judge.oracle is not None
        for candidate in list(second_backward.differentiated(self.project, self.known[0]))[:_WAYS]:
            if self.attempts.late:
                return
            edited, trial = self.attempts.run(self.project, candidate)
            if not trial.ran or self.judge.final(trial, self.attempts.encoded(edited)).same:
                continue  # the loss does not move with that gradient
            kept = Option(plan.chosen[0], plan.sources, "the taken gradient is a constant of the loss")
            told = effect(self.judge.oracle.calls, trial.calls)
            made = Option(candidate, self.attempts.changed(edited), told)
            plan.status, plan.message, plan.verdict = "unproven", CONSTANT, None
            plan.options += [made, kept]
            plan.chosen, plan.sources = [candidate], made.sources  # for --unsafe
            return

    def _frozen(self, plan: Plan) -> None:
        """A copy of the parameters for the one forward that all iterations go back into: quiet, and seldom what is meant."""
        found = self._first_that_runs(options.made_once(self.project, self.known[0]))
        if found is not None:
            plan.options.append(found)
        for candidate in [c for c in propose(self.project, self.known[0]) if c.kind == "clone_save"][:_WAYS]:
            if self.attempts.late:
                return
            edited, trial = self.attempts.run(self.project, candidate)
            if self.judge.final(trial, self.attempts.encoded(edited)).same:
                noted = replace(candidate, note=FROZEN[self.judge.again])
                told = "the gradients of the healed run"
                plan.options.append(Option(noted, self.attempts.changed(edited), told))
                return

    def _guarded(self, plan: Plan) -> None:
        """The fixed program with save_for_backward: proven too, and more than the fix needs."""
        if any(c.kind == "custom_function" for c in plan.chosen):
            return  # a copy of its own needs no guard
        fixed = self.project.edited(plan.sources)
        for candidate in save_for_backward.guarded(fixed, self.known):
            edited, trial = self.attempts.run(fixed, candidate)
            if edited != fixed and self.judge.final(trial, self.attempts.encoded(edited)).same:
                told = "the same gradients; the fix of the write is still needed"
                plan.options.append(Option(candidate, self.attempts.changed(edited), told, proven=True))
