"""Which oracle can speak for a program, and what it says of an edited one.

- `healed`: the healed run of the original, confirmed by a run that copies everything saved.
- `retained`: the same, with every graph kept, for programs that go through one twice.
- `update`: the refused write done without autograd: a parameter update is no part of the graph.
- `differences`: float64 differences of the original's forward, where no graph can be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gradmend.fix.proof.compare import Verdict, compare
from gradmend.fix.proof.runs import Run, Runner

Basis = Literal["healed", "retained", "update", "differences"]
Sources = Mapping[str, bytes]

WORDS: dict[Basis, str] = {
    "healed": "the healed run of the original",
    "retained": "the healed run of the original with every graph kept",
    "update": "the original with the refused update done outside the graph",
    "differences": "float64 differences of the original's forward",
}

_SEEDS = (11, 12)
_STEPS = (2e-6, 1e-5)
_LEAVES = 6


@dataclass(slots=True)
class Slopes:
    """How the loss of the first backward call moves along each direction: (seed, leaf or None) -> slope."""

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
    ) -> None:
        self.runner, self.basis, self.oracle, self.plain = runner, basis, oracle, plain
        self.slopes = slopes
        self.output = output  # is what the program prints the same in each run?

    def final(self, trial: Run, sources: Sources) -> Verdict:
        """Does the edited program, under plain PyTorch, compute what the original meant?"""
        if not trial.ran:
            return Verdict(False, why=trial.why)
        if self.basis != "differences":
            assert self.oracle is not None
            return compare(self.oracle, trial, output=self.output)
        return self._by_differences(trial, sources)

    def so_far(self, trial: Run) -> Verdict:
        """A program that still has other conflicts: does what it did until then agree?"""
        if self.oracle is None:
            return Verdict(True)
        return compare(self.oracle, trial, partial=True)

    # -- differences -------------------------------------------------------------------------------
    def _by_differences(self, trial: Run, sources: Sources) -> Verdict:
        assert self.slopes is not None
        said = self.runner.run(sources, "slopes", seeds=list(_SEEDS))
        if said.outcome != "stopped" or "slopes" not in said.extra:
            return Verdict(False, why=f"in float64: {said.why}")
        if said.extra["leaves"] != self.slopes.leaves:
            return Verdict(False, why="its forward uses other leaves")
        if abs(said.extra["loss"] - self.slopes.loss) > 1e-9 * max(1.0, abs(self.slopes.loss)):
            return Verdict(False, why="it changes the loss")
        given: dict[tuple[int, str], float] = said.extra["slopes"]
        for (seed, only), moved in self.slopes.slopes.items():
            moving = list(self.slopes.leaves) if only is None else [only]
            claimed = sum(given.get((seed, name), 0.0) for name in moving)
            size = sum(abs(given.get((seed, name), 0.0)) for name in moving)
            gap = abs(claimed - moved)
            if gap > 1e-5 * max(size, abs(moved)) + 1e-8:
                who = "all leaves together" if only is None else said.extra["names"].get(only, only)
                share = 100 * gap / max(abs(moved), 1e-12)
                return Verdict(False, why=f"the gradient of {who} is {share:.3g}% off the differences")
        if self.plain.ran or self.plain.calls:
            forward = compare(_losses(self.plain), _losses(trial), partial=True)
            if not forward.same:
                return Verdict(False, why=forward.why)
        return Verdict(True, True, calls=1, gradients=len(self.slopes.leaves))


def measure(runner: Runner, sources: Sources, doors: bool = False) -> Slopes | str:
    """Slopes of the original's first loss, or why they can't be had."""
    tape = str(runner.scratch.top / "tape")
    base = runner.run(sources, "differences", step=0.0, seed=_SEEDS[0], tape=tape, doors=doors)
    if base.outcome != "stopped" or "loss" not in base.extra:
        return f"in float64 the forward ends differently: {base.why}"
    if base.extra["inputs"] or not base.extra["float64"]:
        return (
            "the loss is not computed in float64" if not base.extra["float64"] else "it calls autograd.grad"
        )
    leaves = base.extra["leaves"]
    ways: list[tuple[int, str | None]] = [(seed, None) for seed in _SEEDS]
    ways += [(_SEEDS[0], name) for name in list(leaves)[:_LEAVES]]
    found: dict[tuple[int, str | None], float] = {}
    for seed, only in ways:
        steps = _STEPS if only is None else _STEPS[:1]
        slope = _slope(runner, sources, tape, seed, only, doors, steps)
        if isinstance(slope, str):
            return slope
        found[(seed, only)] = slope
    return Slopes(base.extra["loss"], leaves, found)


def _slope(
    runner: Runner,
    sources: Sources,
    tape: str,
    seed: int,
    only: str | None,
    doors: bool,
    steps: tuple[float, ...],
) -> float | str:
    """A central difference, taken at two steps that must agree: a kink or noise shows there."""
    values = []
    for step in steps:
        sides = []
        for sign in (1, -1):
            options = {"step": sign * step, "seed": seed, "only": only, "tape": tape, "replay": True}
            run = runner.run(sources, "differences", doors=doors, **options)
            if "loss" not in run.extra:
                return f"with its leaves moved the forward ends differently: {run.why}"
            sides.append(run.extra["loss"])
        values.append((sides[0] - sides[1]) / (2 * step))
    if abs(values[0] - values[-1]) > 1e-4 * max(abs(values[0]), abs(values[-1])) + 1e-7:
        return "the forward is not smooth at this point"
    return values[0]


def _losses(run: Run) -> Run:
    """The same run with its gradients left out."""
    calls: list[dict[str, Any]] = [{**c, "grads": {}, "failed": False} for c in run.calls[:1]]
    return Run(run.outcome, calls)
