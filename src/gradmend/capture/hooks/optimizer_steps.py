"""While an optimizer steps, ears that only the program's own writes concern are turned away.

A step is dozens of writes to leaves and to the optimizer's state. The ledger hears them while a Save lives;
the recorder takes the step as one write; edits of tensors with a history are not what an optimizer makes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gradmend.capture.taps import hub

_EARS = ("listeners", "edits")
_awake = hub.awake

stepped: list[Callable[[Any], None]] = []  # called with the optimizer after each step
asleep: set[str] = set()
_handles: list[Any] = []
_armed = 0


def arm() -> None:
    global _armed
    _armed += 1
    if _armed == 1:
        _handles.append(register_optimizer_step_pre_hook(_before))
        _handles.append(register_optimizer_step_post_hook(_after))


def disarm() -> None:
    global _armed
    _armed -= 1
    if _armed == 0:
        wake()
        while _handles:
            _handles.pop().remove()


# These run once a step between two of the program's own lines, where Python costs several times what it does in
# a tight loop: they look before they act.


def _before(optimizer: Any, args: Any, kwargs: Any) -> None:
    if (len(args) > 1 or kwargs) and any(map(callable, (*args[1:], *kwargs.values()))):
        return  # a closure runs the program's own code
    for ear in _EARS:
        if ear in _awake:
            _awake.discard(ear)
            asleep.add(ear)


def _after(optimizer: Any, args: Any, kwargs: Any) -> None:
    wake()
    for hear in stepped:
        hear(optimizer)


def wake() -> None:
    """Listen again. A step that raised never told its end, so the next Save and the next backward wake too."""
    if asleep:
        _awake.update(asleep)
        asleep.clear()
