"""What we do to tensors is no op of the program's: its dispatch modes (a FLOP counter, a checkpoint's policy) shall not see it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

_Func = TypeVar("_Func", bound=Callable[..., Any])
_Result = TypeVar("_Result")
_set_grad_enabled = torch._C._set_grad_enabled
_modes = torch._C._len_torch_dispatch_stack
_FAKE = torch._C._TorchDispatchModeKey.FAKE

unseen = _disable_current_modes


def seen() -> bool:
    """Whether a mode looks on. That of fake tensors must: they have no memory, and what we make of them neither."""
    return _modes() > 0 and torch._C._get_dispatch_mode(_FAKE) is None


def without_grad(work: Callable[..., _Result], *args: Any) -> _Result:
    """The work's result, with grad mode off meanwhile.

    Not `with torch.no_grad()`: an interrupt (Ctrl-C) between its two lines of Python leaves the mode off for good. Here it
    is set inside the try, and no bytecode lies between the two.
    """
    was = torch.is_grad_enabled()
    try:
        _set_grad_enabled(False)
        return work(*args)
    finally:
        _set_grad_enabled(was)


def hidden(function: _Func) -> _Func:
    """The function, with no mode looking on."""

    @wraps(function)
    def out_of_sight(*args: Any, **kwargs: Any) -> Any:
        if _modes() and seen():
            with unseen():
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    return out_of_sight  # type: ignore[return-value]
