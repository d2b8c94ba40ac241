"""While an optimizer steps, the taps pass on what torch's own optimizers write.

A step is dozens of writes to parameters and to the optimizer's state. The recorder takes it as one write, and it edits no
tensor with a history. Passed on is only what the code of torch's optimizers writes itself (edge.quiet), while no Save
lives: hooks, closures, optimizers of the program's own and other threads are heard.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from gradmend.capture import edge
from gradmend.capture.edits import live_edits
from gradmend.capture.taps import hub

_quiet = edge.quiet

stepped: list[Callable[[Any], None]] = []  # called with the optimizer after each step
_loud: set[int] = set()  # threads whose steps must be heard
_own: set[int] = set()  # of the modules of torch's optimizers
_pre_hooks: dict[Any, Any] = _global_optimizer_pre_hooks
_post_hooks: dict[Any, Any] = _global_optimizer_post_hooks
_armed = 0


def arm() -> None:
    global _armed
    _armed += 1
    if _armed == 1:
        kinds = [k for k in vars(torch.optim).values() if isinstance(k, type) and issubclass(k, Optimizer)]
        homes = [inspect.unwrap(k.step).__globals__ for k in kinds if k is not Optimizer]
        _own.update(id(home) for home in homes if home["__name__"].startswith("torch.optim."))
        # By a name: to register them would use up ids of the program's hooks.
        _pre_hooks["gradmend"] = _before
        _post_hooks["gradmend"] = _after


def disarm() -> None:
    global _armed
    _armed -= 1
    if _armed == 0:
        _quiet.clear()
        _loud.clear()
        _pre_hooks.pop("gradmend", None)
        _post_hooks.pop("gradmend", None)


# These run once a step between two of the program's own lines, where Python costs several times what it does in
# a tight loop: they look before they act.


def _before(optimizer: Any, args: Any, kwargs: Any) -> None:
    _quiet.clear()  # of another thread's step too, which is then heard; and of one that raised
    if not _only_parameters(optimizer, args, kwargs):
        _loud.add(get_ident())
    elif not _loud:
        _quiet.update(_own)


def _only_parameters(optimizer: Any, args: Any, kwargs: Any) -> bool:
    """Whether the step writes to what is nobody's but its own, and whoever looks at it looks later."""
    if (len(args) > 1 or kwargs) and any(map(callable, (*args[1:], *kwargs.values()))):
        return False  # a closure looks in the middle
    try:
        if optimizer._optimizer_step_post_hooks:
            return False
        params = parameters(optimizer)
        if not hub.overridden(params):
            return live_edits.apart(params)
        with hub.unheard():
            return live_edits.apart(params)
    except (AttributeError, KeyError, TypeError):
        return False  # an optimizer that keeps its parameters in a way of its own


def parameters(optimizer: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for group in optimizer.param_groups:
        if not isinstance(group["params"], list):
            raise TypeError("an iterator can be gone through once")
        found += group["params"]
    return found


def _after(optimizer: Any, args: Any, kwargs: Any) -> None:
    _quiet.clear()
    _loud.discard(get_ident())
    for hear in stepped:
        hear(optimizer)
