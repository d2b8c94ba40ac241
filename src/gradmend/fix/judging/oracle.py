"""Which oracle speaks for a program: found by running it, or the reason why there is none."""

from __future__ import annotations

import re
from collections.abc import Callable

from gradmend.fix.judging.compare import compare, same_words
from gradmend.fix.judging.judge import COMPUTED, UPDATED, Basis, Judge, measure
from gradmend.fix.search import diagnose
from gradmend.fix.source.facts import Facts
from gradmend.fix.trials.runs import Run, Runner

EDITED = "GM210"  # a tensor inside the graph was changed outside autograd, and used again
MULTIPLE = "multiple views"
GRADIENT = "GM207"  # a hook or a custom backward writes to a gradient that others hold too


CONFIRMED = 8  # backward calls in which a run with copies must agree with the healed one


def _agree(copies: Run, healed: Run) -> bool:
    """The run with copies stops early: a mistake of healing would show in the first calls already."""
    if copies.outcome != "stopped" or len(copies.calls) >= len(healed.calls):
        return compare(copies, healed).same
    return compare(healed, copies, partial=True).same


class Oracles:
    def __init__(self, runner: Runner, tell: Callable[[str], None], plain: Run) -> None:
        self.runner, self.tell, self.plain = runner, tell, plain

    def choose(self, healed: Run, known: list[Facts], copies: Run) -> Judge | str:
        """The oracle for this program, or why there is none."""
        self.tell("looking for an oracle")
        if diagnose.is_refused(self.plain) and _is_plainly_healed(self.plain, healed):
            again = self.runner.run({}, "heal")
            if compare(healed, again).same:
                return Judge(
                    self.runner, "healed", healed, self.plain, output=same_words(healed.stdout, again.stdout)
                )
        if diagnose.is_refused(self.plain):
            return self._without_inference() or self._update() or self.differences()
        retain = diagnose.is_second(self.plain) or diagnose.is_second(healed)
        if retain:
            healed = self.runner.run({}, "heal", retain=True)
            if not diagnose.is_second(self.plain):  # only healing came as far as the second walk
                copies = self.runner.run({}, "copies", retain=True)
        basis: Basis = "retained" if retain else "healed"
        if not copies.ran:
            return (
                f"no oracle: {copies.why}"
                if not healed.ran
                else Judge(self.runner, basis, healed, self.plain)
            )
        agreed = healed.ran and _agree(copies, healed)
        if not agreed:
            if (
                copies.outcome == "stopped" and len(copies.calls) >= CONFIRMED
            ):  # now it has to speak for all of them
                copies = self.runner.run({}, "copies", retain=retain)
            twice = compare(copies, self.runner.run({}, "copies", retain=retain))
            if not twice.same:
                return f"the program is not deterministic: between two runs {twice.why}"
        live = {tuple(p) for p in copies.extra.get("live", [])}
        hidden = any((p.file, p.line) in live for f in known for w in f.writes for p in w.chain)
        # Memory of the graph changed where only the ledger saw it: by numpy, say.
        foreign = not hidden and any(f.rule == EDITED for f in known)
        if hidden or foreign:
            return self.differences(bool(foreign or copies.extra.get("by_detach")))
        if agreed:
            # Where even these two print different things (times, say), output is no evidence.
            early = copies.outcome == "stopped"  # it printed less
            said = early or same_words(copies.stdout, healed.stdout)
            return Judge(self.runner, basis, healed, self.plain, output=said)
        if healed.ran and any(f.rule == GRADIENT for f in known):
            # Such code means another gradient than the derivative; healing gives it memory of its own.
            return Judge(self.runner, basis, healed, self.plain)
        if healed.ran:
            return self.differences()
        # Healing refused. Copies are an oracle only if they changed what plain PyTorch computes.
        if self.plain.ran and compare(copies, self.plain).same:
            return self.differences()
        return Judge(self.runner, basis, copies, self.plain)

    def cut(self) -> Judge | None:
        """The oracle of a program whose state crosses from one backward to the next: each backward ends where an
        earlier one had used the graph up."""
        options = {"retain": True, "cut": True}
        oracle, again = self.runner.together([({}, "heal", options), ({}, "heal", options)])
        if not oracle.ran or not compare(oracle, again).same:
            return None
        return Judge(self.runner, "cut", oracle, self.plain, output=same_words(oracle.stdout, again.stdout))

    def _without_inference(self) -> Judge | None:
        if "inference" not in str((self.plain.error or {}).get("message")).lower():
            return None
        oracle, again = (self.runner.run({}, "plain", inference=False) for _ in range(2))
        if not oracle.ran or not compare(oracle, again).same:
            return None
        return Judge(
            self.runner, "no_grad", oracle, self.plain, output=same_words(oracle.stdout, again.stdout)
        )

    def _update(self) -> Judge | str | None:
        """The oracle of a refused write to a leaf, by its meaning; None where another write was refused."""
        if "leaf" not in str((self.plain.error or {}).get("message")):
            return None
        oracle = self.runner.run({}, "forgive")
        if not _is_update(self.plain, oracle):
            judge = self.differences()
            if isinstance(judge, Judge) and "computation" in oracle.extra.get("meanings", ()):
                judge.meaning = COMPUTED
            return judge
        if not oracle.ran:
            return f"no oracle: {oracle.why}"
        again = self.runner.run({}, "forgive")
        twice = compare(oracle, again)
        if not twice.same:
            return f"the program is not deterministic: between two runs {twice.why}"
        judge = Judge(
            self.runner, "update", oracle, self.plain, output=same_words(oracle.stdout, again.stdout)
        )
        judge.meaning = UPDATED
        return judge

    def differences(self, doors: bool = False) -> Judge | str:
        self.tell("measuring differences in float64")
        slopes = measure(self.runner, {}, doors)
        if isinstance(slopes, str):
            return f"no oracle: {slopes}"
        return Judge(self.runner, "differences", None, self.plain, slopes, doors=doors)


def _is_plainly_healed(plain: Run, healed: Run) -> bool:
    """Views that come several from one call are made one by one under healing: the write means what it says."""
    return healed.ran and bool(healed.calls) and MULTIPLE in str((plain.error or {}).get("message"))


def _is_update(plain: Run, oracle: Run) -> bool:
    """Whether the refused writes are updates, no part of any forward: by what the graph reads of them."""
    meanings = set(oracle.extra.get("meanings", ()))
    if meanings == {"update"}:
        return True
    first = any(re.search(r"__init__|init|reset|build|setup", place.function) for place in plain.chain())
    return bool(meanings) and "computation" not in meanings and first
