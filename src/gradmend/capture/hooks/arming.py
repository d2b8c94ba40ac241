"""What watches for silent wrongs beside the ledger's own Saves and Writes, armed and disarmed as one."""

from __future__ import annotations

from typing import Any

import torch

from gradmend.capture.edits import arrivals, live_edits
from gradmend.capture.graph.calls import BackwardCall, Roots
from gradmend.capture.hooks import (
    checkpoints,
    custom_functions,
    eager_frames,
    gradients,
    optimizer_steps,
    retaining,
)
from gradmend.capture.ledger import scopes
from gradmend.capture.ledger.version_steps import identity
from gradmend.capture.taps import hub

_armed = 0
watching: set[str] = set()  # holds a word while this is armed
hooks: dict[int, list[Any]] = {}  # tick of a running backward -> hooks to take off after it


def arm() -> None:
    global _armed
    _armed += 1
    if _armed > 1:
        return
    live_edits.arm()
    # A write to a tensor with history matters even where no Save lives.
    hub.awake.add("edits")
    watching.add("edits")
    optimizer_steps.arm()
    custom_functions.arm()
    gradients.measure()
    gradients.arm()
    checkpoints.arm()
    eager_frames.arm()


def disarm() -> None:
    global _armed
    _armed -= 1
    if _armed:
        return
    live_edits.disarm()
    optimizer_steps.disarm()
    hub.awake.discard("edits")
    watching.discard("edits")
    custom_functions.disarm()
    gradients.disarm()
    checkpoints.disarm()
    eager_frames.disarm()


def before_backward(call: BackwardCall, roots: Roots, grads: Any) -> None:
    call.seeds = _storages(grads)
    scope = scopes.current()
    looked_at = not (scope is not None and scope.plain) and live_edits.pending()
    hooks[call.tick] = arrivals.watch(roots) if looked_at else []


def after_backward(call: BackwardCall, roots: Roots) -> None:
    put_on = hooks.pop(call.tick, None)
    if put_on is not None:
        retaining.look(call, roots)
        for hook in put_on:
            hook.remove()


def _storages(grads: Any) -> tuple[int, ...]:
    return tuple(identity(g) for g in grads or () if isinstance(g, torch.Tensor))
