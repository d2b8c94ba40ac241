"""The way of a fix: diagnose, find an oracle, search, and say what came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradmend.errors import UsageError
from gradmend.fix.judging.judge import WORDS, Judge
from gradmend.fix.judging.oracle import CONFIRMED, Oracles
from gradmend.fix.rewrites import propose
from gradmend.fix.search import blind, diagnose
from gradmend.fix.search.attempts import Attempts
from gradmend.fix.search.choices import Choices
from gradmend.fix.search.outcome import Plan
from gradmend.fix.search.solving import Solver
from gradmend.fix.source.candidate import Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.text import read
from gradmend.fix.trials.runs import Run, Runner
from gradmend.fix.trials.scratch import user_files

# Keeping the graph is not enough when parameters change between its two backward calls: then the author
# most likely meant a shorter gradient, and only the author can say which.
AMBIGUOUS = (
    "ambiguous: this backward goes back into a graph made before the parameters were updated. Options:\n"
    "  1. detach() the state carried over (truncated backpropagation through time): gradients stop there; "
    "no extra memory\n"
    "  2. sum the losses and call backward() once, before the update: the whole gradient, at the old parameters; "
    "the graph of all steps stays in memory\n"
    "  3. compute the shared part again after the update: the gradient at the new parameters; one more forward\n"
    "each is another gradient, so none is chosen for you"
)


STEPPED = (
    "ambiguous: this backward goes back into a graph made before the parameters were updated. Options:\n"
    "  1. move the updates below the last backward() that needs their parameters: the gradients of the forward that ran, "
    "but an update then applies every gradient that is there\n"
    "  2. sum the losses and call backward() once, before the updates: the whole gradient, at the old parameters\n"
    "  3. compute the forward again after each update: the gradient at the new parameters\n"
    "each is another program, so none is chosen for you"
)


def _crosses(facts: Facts) -> bool:
    """Whether state goes from one backward call to the next, through an update."""
    held = facts.carrier
    return facts.second and held is not None and held.how in ("carried", "collected")


class Planner:
    def __init__(self, runner: Runner, tell: Callable[[str], None], seconds: float) -> None:
        self.attempts = Attempts(runner, tell, seconds)

    def plan(self) -> Plan:
        self.attempts.tell("running the program under plain PyTorch")
        plain = self.attempts.runner.run({}, "plain")
        self.attempts.take_time(plain)
        self._load(plain)
        done = self._not_ours(plain)
        if done is not None:
            return done
        self.attempts.tell("healing it")
        retain = {"retain": diagnose.is_second(plain), "limit": min(self.attempts.runner.steps, CONFIRMED)}
        healed, copies = self.attempts.runner.together([({}, "heal", {}), ({}, "copies", retain)])
        if healed.outcome == "late":
            return Plan("stuck", self.attempts.too_long("the healed run"))
        known = diagnose.facts_of(plain, healed)
        conflicts = healed.extra.get("conflicts", [])
        project = self.attempts.original()
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
        oracles = Oracles(self.attempts.runner, self.attempts.tell, plain)
        judge = oracles.choose(healed, known, copies)
        if isinstance(judge, Judge) and judge.stale and _crosses(known[0]):
            judge = oracles.cut() or judge
        if isinstance(judge, str):
            return self._unproven(judge, project, known[0], conflicts)
        if plain.ran and judge.final(plain, {}).same:
            return Plan("clean", f"nothing to fix: the gradient equals {WORDS[judge.basis]}")
        solver = Solver(self.attempts, [])
        solver.scripted = blind.scripted(project, known)
        found = self._search(solver, judge, project, plain, healed)
        found.seeded, found.seconds = bool(plain.extra.get("seeded")), plain.seconds
        found.conflicts, found.facts = conflicts, known[0]
        Choices(self.attempts, judge, project, known).add(found, solver.ambiguous)
        found.options += solver.obvious
        return found

    def _search(self, solver: Solver, judge: Judge, project: Project, plain: Run, healed: Run) -> Plan:
        solved = solver.solve(judge, project, plain, healed)
        if solved is not None:
            found, fixed = solved
            plan = Plan("proven", sources=self.attempts.changed(fixed), chosen=found.chosen)
            plan.verdict, plan.joined = found.verdict, found.judge.joined
        elif solver.ambiguous:
            plan = Plan(
                "unproven", AMBIGUOUS if judge.again == "carried" or judge.basis == "retained" else STEPPED
            )
        elif solver.out_of_time:
            plan = Plan("unproven", self.attempts.too_long("the search"))
        else:
            plan = Plan("unproven", "no candidate was proven")
        plan.meaning = judge.meaning
        plan.original, plan.tried, plan.basis = self.attempts.texts, solver.tried, judge.basis
        return plan

    def _blind(self, plain: Run, project: Project, hidden: blind.Blind) -> Plan:
        """No conflict seen, but part of the program is out of sight: ask the differences."""
        oracles = Oracles(self.attempts.runner, self.attempts.tell, plain)
        judge = oracles.differences() if hidden.suspects else "nothing is written in place"
        if isinstance(judge, str):
            return Plan("clean", f"no conflict found; {hidden.part} could not be checked: {judge}")
        if judge.final(plain, {}).same:
            return Plan("clean", f"nothing to fix: the gradient equals {WORDS[judge.basis]}")
        found = self._search(Solver(self.attempts, hidden.suspects), judge, project, plain, Run("finished"))
        if hidden.meant and found.status != "proven":
            return Plan("clean", f"no conflict found; {hidden.meant}")
        found.facts = hidden.suspects[0]
        return found

    def _unproven(self, why: str, project: Project, facts: Facts, conflicts: list[dict[str, Any]]) -> Plan:
        """No oracle: the first edit that plain PyTorch runs, shown as what it is."""
        plan = Plan("unproven", why, self.attempts.texts, conflicts=conflicts, facts=facts)
        for candidate in propose(project, facts)[:10]:
            if self.attempts.late or "deterministic" in why:
                break
            edited, trial = self.attempts.run(project, candidate)
            if trial.ran:
                plan.chosen, plan.sources = [candidate], self.attempts.changed(edited)
                break
        return plan

    # -- first looks -------------------------------------------------------------------------------
    def _load(self, plain: Run) -> None:
        files = [f for f in plain.extra.get("files", []) if self.attempts.runner.scratch.editable(f)]
        script = str(self.attempts.runner.scratch.script)
        for file in dict.fromkeys([script, *user_files(files)]):
            try:
                self.attempts.texts[file] = read(file)
                compile(self.attempts.texts[file].text, file, "exec", dont_inherit=True)
            except SyntaxError as why:
                raise UsageError(f"{file}:{why.lineno}: cannot parse: {why.msg}") from None
            except UsageError:
                if file == script:
                    raise

    def _not_ours(self, plain: Run) -> Plan | None:
        if plain.outcome == "late":
            seconds = f"{self.attempts.runner.seconds:g}"
            return Plan(
                "stuck",
                f"the program neither ends nor makes {self.attempts.runner.steps} backward calls in {seconds} s: give trials more "
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
