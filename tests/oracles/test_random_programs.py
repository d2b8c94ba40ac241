"""Random programs: healed gradients are those of the program's meaning; watch() stops exactly where they would not be.

`make fuzz` runs 20,000 of them.
"""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, note, settings
from program_draw import programs
from program_model import Edit, Functional, Program, SetItem, leaf, meant, run

import gradmend
from gradmend.capture.graph import reads
from gradmend.capture.taps.hub import LEDGER

MANY = int(os.environ.get("GRADMEND_PROGRAMS", "300"))
LIVE_EDIT = "GM210"
FLAVOURS = ("mixed", "loops", "quiet", "backwards")

each = settings(
    max_examples=MANY // len(FLAVOURS),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)


def bits(t: torch.Tensor) -> torch.Tensor:
    """-0.0 is another value than 0.0: 1 / x tells them apart."""
    return t.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


class Copies:
    """The plainest healer: copy every Save. It tells whether a value that backward reads has changed."""

    def __init__(self) -> None:
        self.harmed = False

    def pack(self, t: torch.Tensor) -> Any:
        return [t.detach(), t.detach().clone()]

    def unpack(self, packed: Any) -> torch.Tensor:
        now, then = packed
        if torch.equal(bits(now), bits(then)):
            return now  # not its copy: what a double backward saves of it must feel a later write
        node = torch._C._current_autograd_node()
        if node is None or reads.is_read(node, reads.slot_of(node, packed)):
            self.harmed = True
        return then


def harmed(program: Program) -> bool:
    copies = Copies()
    with torch.autograd.graph.saved_tensors_hooks(copies.pack, copies.unpack):
        run(program)
    return copies.harmed


def check(program: Program) -> bool:
    """False when it ended in an honest stop: a value edited outside autograd can't be part of any gradient."""
    note(repr(program))
    right = meant(program)
    expected = harmed(program)
    honest = any(isinstance(s, (Edit, SetItem)) and s.quiet for s in program.statements)
    LEDGER.bury()
    others = set(LEDGER.timelines)
    try:
        with gradmend.heal() as session:
            agree(run(program), right, "healed")
        assert (session.outcome == "healed") == expected, [c.message for c in session]
    except gradmend.ConflictError as error:
        if not honest or error.conflict.rule != LIVE_EDIT:
            raise
        return False
    LEDGER.bury()
    if set(LEDGER.timelines) - others:
        gc.collect()
        LEDGER.bury()
    assert not set(LEDGER.timelines) - others, "the ledger keeps storages of a program that is gone"
    stopped = ""
    try:
        with gradmend.watch():
            agree(run(program), right, "watched")
    except gradmend.ConflictError as error:
        stopped = str(error)
    assert bool(stopped) == expected, f"changed and read: {expected}; watch() said: {stopped or 'nothing'}"
    return True


def agree(found: dict[str, torch.Tensor], right: dict[str, torch.Tensor], what: str) -> None:
    for name, gradient in right.items():
        torch.testing.assert_close(
            found[name], gradient, rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{what} {n}: {m}"
        )


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_healed_gradients_are_those_of_the_meaning(flavour: str) -> None:
    @each
    @given(programs(flavour))
    def random_programs(program: Program) -> None:
        ends[check(program)] += 1

    ends = {True: 0, False: 0}
    random_programs()
    print(
        f"{flavour}: {ends[True]} programs ran to their end, {ends[False]} stopped at an edit outside autograd"
    )
    # About every second quiet one stops; a few dozen programs may be far from that.
    assert 4 * ends[True] > ends[False] if flavour == "quiet" else not ends[False]


@settings(
    max_examples=max(40, MANY // 25), deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
@given(programs("mixed"))
def test_the_meaning_has_the_slope_that_differences_show(program: Program) -> None:
    """The oracle's own check: a step along a random direction, in float64."""
    source = program.source()
    kinks = ("relu", "abs", "clamp", "maximum", "where", "> 0", "grad_of", "detach", "scatter_reduce")
    if any(word in source for word in kinks):
        return
    gradients = meant(program)
    direction = {
        n: torch.cos(torch.arange(1.0, g.numel() + 1).reshape(g.shape) * 7) for n, g in gradients.items()
    }

    def loss(step: float) -> float:
        at = [leaf(i, s).detach() + step * direction[f"x{i}"] for i, s in enumerate(program.leaves)]
        meaning = Functional(program.leaves, at)
        for statement in program.statements:
            meaning.do(statement)
        return sum(float(one) for one in meaning.losses)

    slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
    expected = sum(float((g * direction[n]).sum()) for n, g in gradients.items())
    assert slope == pytest.approx(expected, rel=1e-5, abs=1e-5)
