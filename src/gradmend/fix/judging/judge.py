"""Which oracle can speak for a program, and what it says of an edited one.

- `healed`: the healed run of the original, confirmed by a run that copies everything saved.
- `retained`: the same, with every graph kept, for programs that go through one twice.
- `cut`: the same, with no gradient into what an earlier backward had used up, where PyTorch would have freed it.
- `update`: the refused write done without autograd: a parameter update is no part of the graph.
- `no_grad`: the original with `no_grad` in place of `inference_mode`, which computes the same values.
- `differences`: float64 differences of the original's forward, where no graph can be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gradmend.fix.judging.compare import Verdict, as_before, call_gap, compare, effect
from gradmend.fix.judging.joined import Lines, joined, parts
from gradmend.fix.trials.runs import Run, Runner

Basis = Literal["healed", "retained", "update", "no_grad", "differences", "cut"]
Sources = Mapping[str, bytes]

WORDS: dict[Basis, str] = {
    "healed": "the healed run of the original",
    "retained": "the healed run of the original with every graph kept",
    "cut": "the healed run of the original, cut where an earlier backward() had used its graph up",
    "update": "the original with the refused update done outside the graph",
    "no_grad": "the original with no_grad in place of inference_mode",
    "differences": "float64 differences of the original's forward",
}

COMPUTED = "the written value goes on into the loss, so the write is taken as part of the computation: the leaf itself keeps its value"
UPDATED = "no forward that is under way reads the written value, so the write is taken as an update, outside the graph"

_SEEDS = (11, 12)
_STEPS = (2e-6, 1e-5)
_LEAVES = 6
_CALLS = 4  # backward calls that differences judge


@dataclass(slots=True)
class Slopes:
    """How the loss of a backward call moves along each direction: (seed, leaf or None) -> slope."""

    loss: float
    leaves: dict[str, list[int]]
    slopes: dict[tuple[int, str | None], float]


class Judge:
    def __init__(
        self,
        runner: Runner,
        basis: Basis,
        oracle: Run | None,
        plain: Run,
        slopes: Slopes | None = None,
        output: bool = True,
        doors: bool = False,
    ) -> None:
        self.runner, self.basis, self.oracle, self.plain = runner, basis, oracle, plain
        self.slopes, self.doors = slopes, doors
        self.meaning = ""  # of a refused write to a leaf: what the program shows that it is
        self.output = output  # is what the program prints the same in each run?
        self.joined: tuple[
            Lines, ...
        ] = ()  # backward calls of the original that are one in the edited program
        self.apart = oracle  # with these calls apart
        self.bounds: dict[
            str, int
        ] = {}  # how far a trial has to run, where that is not as far as the original

    def joining(self, lines: Lines) -> Judge | None:
        """The judge of programs that make one backward call of several."""
        apart, series = self.apart, (*self.joined, lines)
        if apart is None or not lines:
            return None
        one = joined(apart, series)
        if apart.outcome == "stopped" and len(one.calls) > 1:
            # It may have stopped inside a series of calls: end it after the last whole one.
            apart = self.runner.run({}, "heal", retain=True, limit=sum(map(parts, one.calls[:-1])))
            one = joined(apart, series)
        other = Judge(self.runner, self.basis, one, self.plain, output=self.output)
        other.joined, other.apart = series, apart
        if apart.outcome == "stopped":
            other.bounds = {"limit": len(one.calls)}
        return other

    def done(self, trial: Run) -> int:
        """How many backward calls of the original a program got through."""
        whole = sum(not c.get("failed") for c in trial.calls)
        return sum(map(parts, self.oracle.calls[:whole])) if self.oracle is not None else whole

    def final(self, trial: Run, sources: Sources, moved: bool = False) -> Verdict:
        """Does the edited program, under plain PyTorch, compute what the original meant? `moved`: an update moved."""
        if not trial.ran:
            return Verdict(False, why=trial.why)
        if trial.extra.get("twice", 0) > (self.oracle or self.plain).extra.get("twice", 0):
            return Verdict(False, why="an optimizer would step twice with the same gradients")
        if self.basis != "differences":
            assert self.oracle is not None
            if self.basis == "cut" and not as_before(self.plain, trial):
                return Verdict(False, why="it changes a backward call that plain PyTorch computes")
            return compare(self.oracle, trial, output=self.output, moved=moved)
        return self._by_differences(trial, sources, moved)

    @property
    def stale(self) -> bool:
        """Does a call of the original go back into a graph of before an update of its leaves?"""
        return self.apart is not None and any(c.get("stale") for c in self.apart.calls)

    @property
    def several(self) -> bool:
        """Whether one line steps several optimizers in turn, as in a loop over agents."""
        return self.apart is not None and bool(self.apart.extra.get("several"))

    @property
    def again(self) -> str:
        """Does an iteration of the original go back into a graph of an earlier one, through parameters updated since?
        "once": into one made before all iterations; "carried": through state that goes from one to the next."""
        ways = {c.get("again") for c in self.apart.calls} if self.apart is not None else set()
        return "carried" if "carried" in ways else "once" if "once" in ways else ""

    def recomputed(self, trial: Run, sources: Sources, loose: bool) -> Verdict:
        """An edit that computes a forward again means another gradient from there on: it must be the right one for the
        forward that runs now, and all before the update must be as it was. `loose`: a closure may be called more or less
        often once its gradient is right."""
        if not trial.ran or self.oracle is None:
            return Verdict(False, why=trial.why)
        own = self.runner.run(sources, "copies")
        if own.extra.get("refused") or own.extra.get("silent") or any(c.get("stale") for c in trial.calls):
            return Verdict(False, why="it still goes back into a graph of before the update")
        right = compare(own, trial, output=False)
        if not right.same:
            return Verdict(False, why=f"its own gradient is not right: {right.why}")
        theirs = self.oracle.calls
        if (
            len(trial.calls) != len(theirs)
            and trial.outcome == self.oracle.outcome == "finished"
            and not loose
        ):
            return Verdict(False, why=f"it makes {len(trial.calls)} backward calls, not {len(theirs)}")
        alike = 0
        for a, b in zip(trial.calls, theirs, strict=False):
            if call_gap(a, b, alike + 1):
                break
            alike += 1
        if not alike:
            return Verdict(False, why="its first backward call is another one")
        return Verdict(
            True,
            calls=right.calls,
            gradients=right.gradients,
            changed=(f"forward:{effect(theirs, trial.calls)}",),
        )

    def so_far(self, trial: Run) -> Verdict:
        """A program that still has other conflicts: does what it did until then agree?"""
        if self.oracle is None:
            return Verdict(True)
        return compare(self.oracle, trial, partial=True)

    # -- differences -------------------------------------------------------------------------------
    def _by_differences(self, trial: Run, sources: Sources, moved: bool) -> Verdict:
        assert self.slopes is not None
        given = str(self.runner.scratch.top / "given")
        said = self.runner.run(sources, "slopes", seeds=list(_SEEDS), calls=_CALLS, given=given)
        told: list[dict[str, Any]] = said.extra.get("told", [])
        if not told:
            return Verdict(False, why=f"in float64: {said.why}")
        why = disagreement(self.slopes, told[0])
        if why:
            return Verdict(False, why=why)
        if self.plain.ran or self.plain.calls:
            forward = compare(_losses(self.plain), _losses(trial), partial=True)
            if not forward.same:
                return Verdict(False, why=forward.why)
        judged, gradients = 1, len(self.slopes.leaves)
        for number, later in enumerate(told[1:], 2):
            if later["inputs"]:
                break
            if not later["fresh"] or not later["float64"]:
                continue
            # A write that is part of the computation leaves the leaf itself as it was.
            options = {"call": number, "given": given, "resync": moved or self.meaning == COMPUTED}
            slopes = measure(self.runner, {}, self.doors, brief=True, **options)
            if isinstance(slopes, str):
                continue
            why = disagreement(slopes, later)
            if why:
                return Verdict(False, why=f"in backward call {number}: {why}")
            judged, gradients = judged + 1, gradients + len(slopes.leaves)
        return Verdict(True, True, calls=judged, gradients=gradients, of=len(trial.calls))


def disagreement(slopes: Slopes, told: dict[str, Any]) -> str:
    """How a gradient contradicts the differences of one call; nothing where it does not."""
    if told["leaves"] != slopes.leaves:
        return "its forward uses other leaves"
    if abs(told["loss"] - slopes.loss) > 1e-9 * max(1.0, abs(slopes.loss)):
        return "it changes the loss"
    given: dict[tuple[int, str], float] = told["slopes"]
    for (seed, only), moved in slopes.slopes.items():
        moving = list(slopes.leaves) if only is None else [only]
        claimed = sum(given.get((seed, name), 0.0) for name in moving)
        size = sum(abs(given.get((seed, name), 0.0)) for name in moving)
        gap = abs(claimed - moved)
        if gap > 1e-5 * max(size, abs(moved)) + 1e-8:
            who = "all leaves together" if only is None else told["names"].get(only, only)
            share = 100 * gap / max(abs(moved), 1e-12)
            return f"the gradient of {who} is {share:.3g}% off the differences"
    return ""


def measure(
    runner: Runner, sources: Sources, doors: bool = False, brief: bool = False, **options: Any
) -> Slopes | str:
    """Slopes of the loss of one backward call of the original, or why they can't be had."""
    ask = {**options, "doors": doors, "tape": str(runner.scratch.top / "tape")}
    base = runner.run(sources, "differences", step=0.0, seed=_SEEDS[0], **ask)
    if base.outcome != "stopped" or "loss" not in base.extra:
        return f"in float64 the forward ends differently: {base.why}"
    if base.extra["inputs"] or not base.extra["float64"]:
        return (
            "the loss is not computed in float64" if not base.extra["float64"] else "it calls autograd.grad"
        )
    leaves = base.extra["leaves"]
    ways: list[tuple[int, str | None]] = [(seed, None) for seed in _SEEDS]
    if not brief:
        ways += [(_SEEDS[0], name) for name in list(leaves)[:_LEAVES]]
    found: dict[tuple[int, str | None], float] = {}
    for seed, only in ways:
        steps = _STEPS if only is None and not (brief and found) else _STEPS[:1]
        slope = _slope(runner, sources, {**ask, "seed": seed, "only": only}, steps)
        if isinstance(slope, str):
            return slope
        found[(seed, only)] = slope
    return Slopes(base.extra["loss"], leaves, found)


def _slope(runner: Runner, sources: Sources, ask: dict[str, Any], steps: tuple[float, ...]) -> float | str:
    """A central difference, taken at two steps that must agree: a kink or noise shows there."""
    values = []
    for step in steps:
        moves = [(sources, "differences", {**ask, "step": s, "replay": True}) for s in (step, -step)]
        runs = runner.together(moves)
        for run in runs:
            if "loss" not in run.extra:
                return f"with its leaves moved the forward ends differently: {run.why}"
        values.append((runs[0].extra["loss"] - runs[1].extra["loss"]) / (2 * step))
    if abs(values[0] - values[-1]) > 1e-4 * max(abs(values[0]), abs(values[-1])) + 1e-7:
        return "the forward is not smooth at this point"
    return values[0]


def _losses(run: Run) -> Run:
    """The same run with its gradients left out."""
    calls: list[dict[str, Any]] = [{**c, "grads": {}, "failed": False} for c in run.calls[:1]]
    return Run(run.outcome, calls)
