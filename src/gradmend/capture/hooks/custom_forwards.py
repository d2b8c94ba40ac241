"""What the forward of a custom Function did to its inputs, and whether it said so by mark_dirty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradmend.capture.edits.edit import serials
from gradmend.capture.edits.live_edits import live, owner_of, state
from gradmend.capture.graph import nodes
from gradmend.capture.ledger.entries import Write, made_write
from gradmend.capture.ledger.version_steps import Steps, key_of
from gradmend.capture.memory.layouts import layout_of
from gradmend.capture.sites import raw_here
from gradmend.capture.taps import hub


class Inside:
    """What the forward of a custom Function writes to its inputs, while it runs."""

    def __init__(self, ctx: Any, inputs: list[torch.Tensor]) -> None:
        self.ctx = ctx
        # To an input that save_for_backward had been given: saved is what it is at the end.
        self.late: Write | None = None
        self.inputs = inputs
        self.numbers = [_numbers(t) for t in inputs]
        self.steps = Steps(inputs)
        self.since = next(serials)
        self.leaves = len(state.leaf_writes)

    def __enter__(self) -> Inside:
        state.inputs.append(self.inputs)
        hub.listen(self)
        return self

    def __exit__(self, *_: object) -> None:
        hub.unlisten(self)
        state.inputs.pop()

    def __call__(self, op: str, targets: Sequence[torch.Tensor], how: str) -> None:
        self.steps.hear(op, targets)
        given = self.ctx.to_save if self.late is None else None
        if given:
            saved = {key_of(t) for t in self.inputs if any(t is s for s in given)}
            for t in targets:
                if key_of(t) in saved:
                    self.late = made_write(0, op, raw_here(), layout_of(t), how)

    def unmarked(self, dirty: Sequence[torch.Tensor]) -> Write | None:
        """The write to an input that was not marked dirty. Those that were are autograd's own from now on."""
        made = [e for e in live() if e.serial > self.since] if state.pending else []
        leaves = state.leaf_writes[self.leaves :]
        del state.leaf_writes[self.leaves :]
        found: Write | None = None
        for i, (t, numbers) in enumerate(zip(self.inputs, self.numbers, strict=True)):
            mine = [e for e in made if e.key[0] in numbers]
            if any(t is d for d in dirty):  # the tensor's history is the Function's now
                for edit in mine:
                    edit.void = True
                continue
            writes = [e.written for e in mine] + [w for leaf, w in leaves if leaf is t]
            if writes:
                found = found or writes[0]
            elif self.steps.unseen(i) and not t.is_leaf:
                found = found or made_write(0, "", (), layout_of(t))
        return found


def _numbers(t: torch.Tensor) -> set[int]:
    return {n._sequence_nr() for n in map(nodes.known, (t.grad_fn, owner_of(t).grad_fn)) if n is not None}
