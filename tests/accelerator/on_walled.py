"""A pytest plugin (`-p on_walled`): the tests that it runs make their tensors on the walled device.

A constructor that is called without a device (`torch.tensor`, `torch.ones`, ...) makes its tensor there, when the call
comes from a test or from `torch.nn`. Calls from Gradmend are left alone: a tensor that it makes on the CPU, to be used
with one of the device, must fail here as it would on a GPU. No torch function mode is used, so that a program takes the
same roads as on a GPU.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import walled

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

    return made


def _constructors() -> Iterator[str]:
    from torch.utils._device import _device_constructors

    known = _device_constructors()
    for name in dir(torch):
        found = getattr(torch, name)
        if callable(found) and not isinstance(found, type) and not name.startswith("_") and found in known:
            yield name


for _name in list(_constructors()):
    setattr(torch, _name, _placed(getattr(torch, _name)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        given = getattr(item, "callspec", None)
        if given is not None and getattr(given.params.get("program"), "numpy", False):
            item.add_marker(pytest.mark.skip("shares memory with numpy: only the CPU can"))
