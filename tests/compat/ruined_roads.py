"""Run as a program, in pure Python: ruins one road after the other, and prints what its canary says of it.

Each way of ruining stands for something that a later torch could do: call by a name bound before the taps are on,
rename what we patch, no longer tell what we ask.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch

from gradmend.capture.edits import live_edits
from gradmend.capture.graph import engine_threads, reads
from gradmend.capture.hooks import checkpoints, custom_forwards, custom_functions, gradients, saved_tensors
from gradmend.capture.ledger import entries, escapes, ledger
from gradmend.capture.memory import layouts
from gradmend.capture.taps import switch
from gradmend.compat import trust

sgd = import_module("torch.optim.sgd")
_early = {name: getattr(torch, name) for name in ("_foreach_add_", "_fused_sgd_")}
_add: Any = torch._C.TensorBase.add_


def nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _gone(owner: Any, *names: str, value: Any = nothing) -> Callable[[], Any]:
    @contextmanager
    def ruin() -> Iterator[None]:
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(patch.object(owner, name, value))
            yield

    return ruin


def _single(params: Any, grads: Any, *args: Any, lr: Any, **kwargs: Any) -> None:
    for p, g in zip(params, grads, strict=True):
        _add(p, g, alpha=-lr)


def _multi(params: Any, grads: Any, *args: Any, lr: Any, **kwargs: Any) -> None:
    _early["_foreach_add_"](params, grads, alpha=-lr)


def _fused(params: Any, grads: Any, *args: Any, lr: Any, **kwargs: Any) -> None:
    options = {"weight_decay": 0.0, "momentum": 0.0, "lr": lr, "dampening": 0.0, "nesterov": False}
    _early["_fused_sgd_"](params, grads, [], **options, maximize=False, is_first_step=True)


class _Elsewhere:
    forward = staticmethod(nothing)


RUINS: dict[str, Callable[[], Any]] = {
    "writes": _gone(switch, "arm", "disarm"),
    "views": _gone(layouts, "overlap", value=lambda a, b: False),
    "counters": _gone(entries.Save, "uncredited", value=lambda self: False),
    "data": _gone(ledger.Ledger, "swapped", value=lambda *a: nothing),
    "escapes": _gone(escapes, "fingerprint", value=lambda t: 0),
    "hooks": _gone(saved_tensors, "_enter", value=saved_tensors._plain_enter),
    "slots": _gone(reads, "slot_of"),
    "steps": _gone(sgd, "_single_tensor_sgd", value=_single),
    "foreach": _gone(sgd, "_multi_tensor_sgd", value=_multi),
    "fused": _gone(sgd, "_fused_sgd", value=_fused),
    "collectives": _gone(switch, "arm", "disarm"),
    "ctx": _gone(custom_functions, "patches", value=tuple),
    "unmarked": _gone(custom_forwards.Inside, "unmarked"),
    "gradients": _gone(gradients, "patches", value=tuple),
    "edits": _gone(live_edits, "before"),
    "threads": _gone(engine_threads, "_is_known", value=lambda key: False),
    "checkpoint": _gone(checkpoints.compat, "homes", value=lambda: iter(())),
    "reentrant": _gone(checkpoints, "_Function", value=_Elsewhere),
}

if __name__ == "__main__":
    said = {}
    for road, ruin in RUINS.items():
        before = trust.canaries().failure_of(road)
        with ruin():
            during = trust.canaries().failure_of(road)
        said[road] = before, during, trust.canaries().failure_of(road)
    print(json.dumps(said))
