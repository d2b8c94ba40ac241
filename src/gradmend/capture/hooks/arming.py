"""What watches for silent wrongs beside the ledger's own Saves and Writes, armed and disarmed as one."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from gradmend.capture.edits import arrivals, live_edits
from gradmend.capture.graph.calls import BackwardCall, Roots
from gradmend.capture.hooks import (
    backward_calls,
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
from gradmend.capture.taps import hub, leaf_writes

_ABSENT = object()
_armed = 0
_own: list[tuple[Any, str, Any]] = []  # owners and names that are ours while we are armed, and what was there


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
    backward_calls.watchers += [_before_backward, leaf_writes.watch]
    eager_frames.arm()
    gradients.measure()


def disarm() -> None:
    global _armed
    _armed -= 1
    if _armed:
        return
    live_edits.disarm()
    optimizer_steps.disarm()
    for watcher in (_before_backward, leaf_writes.watch):
        backward_calls.watchers.remove(watcher)
    leaf_writes.forget()
    hub.awake.discard("edits")
    while _own:
        owner, name, was = _own.pop()
        if was is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, was)
    eager_frames.disarm()


def _before_backward(call: BackwardCall, roots: Roots, grads: Any) -> backward_calls.Ended:
    call.seeds = tuple(identity(g) for g in grads or () if isinstance(g, torch.Tensor))
    scope = scopes.current()
    looked_at = live_edits.pending() and (scope is None or not scope.plain)
    hooks = arrivals.watch(roots) if looked_at else []
    return partial(_after_backward, hooks) if hooks else retaining.look


def _after_backward(hooks: list[Any], call: BackwardCall, roots: Roots) -> None:
    retaining.look(call, roots)
    for hook in hooks:
        hook.remove()
