"""Import this, and programs make their tensors on the walled device.

A constructor that is called without a device (`torch.tensor`, `torch.ones`, ...) makes its tensor there, when the call
comes from a program or from `torch.nn`. Calls from Gradmend and from the rest of torch are left alone: a tensor that
Gradmend makes on the CPU, to be used with one of the device, must fail here as it would on a GPU. No torch function
mode is used, so that a program takes the same roads as on a GPU.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import walled
from torch.jit._builtins import _find_builtin, _register_builtin
from torch.utils._device import _device_constructors

DEVICE = walled.register()


def _is_program(frame: Any) -> bool:
    module = frame.f_globals.get("__name__", "")
    return not module.startswith(("gradmend", "torch.")) or module.startswith("torch.nn.")


def _placed(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*args: Any, **options: Any) -> Any:
        if options.get("device") is not None or not _is_program(sys._getframe(1)):
            return make(*args, **options)
        if options.get("out") is not None or (
            make.__name__ in ("as_tensor", "asarray") and isinstance(args[0], torch.Tensor)
        ):
            return make(*args, **options)
        options.pop("device", None)
        generator = options.get("generator")
        if generator is not None and generator.device.type == "cpu":
            wants = options.pop("requires_grad", False)
            return make(*args, **options).to(DEVICE).requires_grad_(wants)
        return make(*args, device=DEVICE, **options)

    known = _find_builtin(make)
    if known is not None:  # for torch.jit
        _register_builtin(made, known)
    return made


def place() -> None:
    known = _device_constructors()
    for name in dir(torch):
        found = getattr(torch, name)
        if callable(found) and not isinstance(found, type) and not name.startswith("_") and found in known:
            setattr(torch, name, _placed(found))


place()
