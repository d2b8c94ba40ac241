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
    saved_tensors,
)
from gradmend.capture.ledger import scopes
from gradmend.capture.ledger.version_steps import identity
from gradmend.capture.taps import hub

_ABSENT = object()
_armed = 0
_own: list[tuple[Any, str, Any]] = []  # owners and names that are ours while we are armed, and what was there
_hooks: dict[int, list[Any]] = {}  # tick of a running backward -> hooks to take off after it


def arm() -> None:
    global _armed
    _armed += 1
    if _armed > 1:
        return
    live_edits.arm()
    # A write to a tensor with history matters even where no Save lives.
    hub.awake.add("edits")
    optimizer_steps.arm()
    for part in (saved_tensors, custom_functions, gradients, checkpoints):
        for owner, name, ours in part.patches():
            _own.append((owner, name, vars(owner).get(name, _ABSENT)))
            setattr(owner, name, ours)
    eager_frames.arm()
    gradients.measure()


def disarm() -> None:
    global _armed
    _armed -= 1
    if _armed:
        return
    live_edits.disarm()
    optimizer_steps.disarm()
    hub.awake.discard("edits")
    while _own:
        owner, name, was = _own.pop()
        if was is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, was)
    eager_frames.disarm()


def armed() -> bool:
    return _armed > 0


def before_backward(call: BackwardCall, roots: Roots, grads: Any) -> None:
    call.seeds = tuple(identity(g) for g in grads or () if isinstance(g, torch.Tensor))
    scope = scopes.current()
    looked_at = live_edits.pending() and (scope is None or not scope.plain)
    _hooks[call.tick] = arrivals.watch(roots) if looked_at else []


def after_backward(call: BackwardCall, roots: Roots) -> None:
    hooks = _hooks.pop(call.tick, None)
    if hooks is None:
        return  # nobody watched when it began
    retaining.look(call, roots)
    for hook in hooks:
        hook.remove()
