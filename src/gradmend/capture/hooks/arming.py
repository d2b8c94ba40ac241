"""What watches for silent wrongs beside the ledger's own Saves and Writes, armed and disarmed as one."""

from __future__ import annotations

from typing import Any

import torch

from gradmend.capture.edits import arrivals, branches, live_edits
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
_hooks: dict[int, list[Any]] = {}  # tick of a running backward -> hooks to take off after it


def arm() -> None:
    global _armed
    _armed += 1
    live_edits.arm()
    if _armed > 1:
        return
    # A write to a tensor with history matters even where no Save lives.
    hub.awake.add("edits")
    optimizer_steps.arm()
    custom_functions.arm()
    gradients.measure()
    gradients.arm()
    checkpoints.arm()
    eager_frames.arm()


def disarm() -> None:
    global _armed
    _armed -= 1
    live_edits.disarm()
    if _armed:
        return
    optimizer_steps.disarm()
    hub.awake.discard("edits")
    custom_functions.disarm()
    gradients.disarm()
    checkpoints.disarm()
    eager_frames.disarm()


def armed() -> bool:
    return _armed > 0


def before_backward(call: BackwardCall, roots: Roots, grads: Any) -> None:
    branches.roots[call.tick] = roots
    call.seeds = tuple(identity(g) for g in grads or () if isinstance(g, torch.Tensor))
    scope = scopes.current()
    if not (scope is not None and scope.plain) and live_edits.pending():
        put_on = arrivals.watch(roots)
        if put_on:
            _hooks[call.tick] = put_on


def after_backward(call: BackwardCall) -> None:
    roots = branches.roots.pop(call.tick, None)
    if roots is not None:
        retaining.look(call, roots)
    for hook in _hooks.pop(call.tick, ()):
        hook.remove()
