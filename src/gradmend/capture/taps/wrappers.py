"""What runs when a program calls one of torch's writing names. While nobody listens it costs two checks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from gradmend.capture import edge
from gradmend.capture.edits import live_edits
from gradmend.capture.taps import hub, refused, stand_ins
from gradmend.capture.taps.schemas import METADATA, Writes
from gradmend.capture.taps.stand_ins import Func

_compiling, _awake, _before, _carry = hub.compiling, hub.awake, hub.before, hub.carry
_tracing = torch.compiler.is_dynamo_compiling  # a fraction of what is_compiling() costs
_Tensor = torch.Tensor

_only_recorded = hub.only_recorded
_quiet, _passed_on = edge.quiet, edge.passed_on
overridden = torch._C._has_torch_function_unary


def method(original: Func, op: str, heard: Func = hub.heard) -> Func:
    """`t.add_(...)`, `t += ...`, `t[key] = value`: the first argument is written."""
    how = "metadata" if op in METADATA else "data"

    def tap(*args: Any, **kwargs: Any) -> Any:
        if _tracing() or not _awake or (_quiet and _passed_on(_awake)):
            return original(*args, **kwargs)
        if not args or not isinstance(args[0], _Tensor) or _compiling():
            return original(*args, **kwargs)
        return heard(original, op, how, args, kwargs)

    return stand_ins.method(original, tap, heard, op, how, _awake)


_OUT = Writes((), ("out",))


def out_function(original: Func, op: str) -> Func:
    """`torch.add(..., out=t)`: out of place, as nearly always, it costs one look at the keywords."""

    def tap(*args: Any, **kwargs: Any) -> Any:
        heard = kwargs and kwargs.get("out") is not None and not _tracing() and _awake and not _compiling()
        if not heard or (_quiet and _passed_on(_awake)):
            return original(*args, **kwargs)
        return _into(_before(f"{op}(out=)", _OUT.given(args, kwargs)), original, args, kwargs)

    return stand_ins.function(original, tap, False, _awake)


def _into(pending: Any, original: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call with `out=`."""
    try:
        return _carry(pending, original, args, kwargs)
    except RuntimeError as error:
        if (made := refused.into(error, original, args, kwargs)) is None:
            raise
        return made


def function(original: Func, op: str, writes: Writes) -> Func:
    """`torch.relu_(t)`, `torch._foreach_add_(ts, ...)`; some take `out=` too."""
    if not writes.args:
        return out_function(original, op)
    # The schemas' `self` is `input` to who calls a function, and all that they call otherwise is `out`.
    writes = Writes(tuple((at, "input" if name == "self" else name) for at, name in writes.args), ("out",))
    how = "metadata" if op in METADATA else "data"
    uncounted = op in ("batch_norm", "native_batch_norm", "_batch_norm_impl_index")
    trained_only = uncounted or op == "instance_norm"
    # `relu_`: all it writes is its first.
    first = len(writes.args) == 1 and writes.args[0][0] == 0 and not trained_only

    def tap(*args: Any, **kwargs: Any) -> Any:
        if _tracing() or not _awake or (_quiet and _passed_on(_awake)):
            return original(*args, **kwargs)
        if first and args and not kwargs and _only_recorded(args[0]):
            return hub.heard(original, op, how, args)
        # No counter steps in these, so no error comes of them that a recorder could explain.
        if (uncounted and not live_edits.state.on and "saves" not in _awake) or _compiling():
            return original(*args, **kwargs)
        targets = writes.given(args, kwargs)
        if not targets or (trained_only and not _trains(op, args, kwargs)):
            return original(*args, **kwargs)
        carry = _into if kwargs.get("out") is not None else _carry
        return carry(_before(op, targets, args[1:], kwargs, how), original, args, kwargs)

    return stand_ins.function(original, tap, True, _awake)


def _trains(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    name = "use_input_stats" if op == "instance_norm" else "training"
    return bool(args[5] if len(args) > 5 else kwargs.get(name, True))


def overload_call(original: Func, table: Callable[[Any], tuple[str, Writes] | None]) -> Func:
    """`torch.ops.aten.add_(...)`: the class's own call, for those ops whose schema writes."""

    @functools.wraps(original)
    def tap(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if _tracing() or not _awake or _compiling():
            return original(self, *args, **kwargs)
        found = table(self)
        if found is None:
            return original(self, *args, **kwargs)
        op, writes = found
        how = "metadata" if op in METADATA else "data"
        pending = _before(op, writes.given(args, kwargs), args[1:], kwargs, how)
        return _carry(pending, original, (self, *args), kwargs)

    return tap
