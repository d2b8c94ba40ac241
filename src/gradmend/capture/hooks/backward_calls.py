"""Where every backward passes: it is recorded (graph/calls.py), and whoever listens is called back.

`Tensor.backward`, `torch.autograd.backward` and `torch.autograd.grad` all end in one function, which two modules
hold by name; both are wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import wraps
from itertools import count
from threading import get_ident
from types import FunctionType
from typing import Any

import torch
import torch.autograd.graph as graph

from gradmend.capture.graph import nodes
from gradmend.capture.graph.calls import BackwardCall, Roots, history, running
from gradmend.capture.ledger import scopes
from gradmend.capture.sites import raw_here
from gradmend.capture.taps import caches
from gradmend.errors import unexplained

_CALLS_WITH_NODES = 16


Before = Callable[[BackwardCall, Roots, Any], None]  # and the gradients that the call was given
After = Callable[[BackwardCall, Roots], None]
Failed = Callable[[BackwardCall, BaseException, Roots], None]

_ticks = count(1)
_disarm: Callable[[], None] | None = None


class _Ears:
    """Who is called back, and the containers of which one must hold something for it to be worth it; None: always."""

    before: Before | None = None
    after: After | None = None
    failed: Failed | None = None
    when: tuple[Collection[Any], ...] | None = None
    then: tuple[Collection[Any], ...] | None = None


def arm(
    before: Before | None = None,
    after: After | None = None,
    failed: Failed | None = None,
    *,
    when: tuple[Collection[Any], ...] | None = None,
    then: tuple[Collection[Any], ...] | None = None,
) -> None:
    """Record each backward from now on, and call back before it, after it, and when it raises.

    `failed` gets the roots too, while they are alive; it must not keep them. `before` is called only while one of the
    containers in `when` holds something, and `after` while one in `then` does.
    """
    global _disarm
    if _disarm is not None:
        raise RuntimeError("the recording of backward calls is armed already; disarm() it first")
    _Ears.before, _Ears.after, _Ears.failed, _Ears.when, _Ears.then = before, after, failed, when, then
    homes: list[Any] = [graph, torch.autograd]
    originals = [home._engine_run_backward for home in homes]
    wrappers = [_wrapped(original) for original in originals]
    for home, (wrapper, state) in zip(homes, wrappers, strict=True):
        state[1] = True
        home._engine_run_backward = wrapper

    def disarm() -> None:
        for home, original, (wrapper, state) in zip(homes, originals, wrappers, strict=True):
            state[1] = False
            if home._engine_run_backward is wrapper:
                home._engine_run_backward = original
            else:  # whoever wrapped us meanwhile is left with a wrapper that only passes on, also when armed again
                _quick.clear()

    _disarm = disarm


_State = list[Any]  # what is wrapped, and whether we record
# torch's own function, wrapped once and for all: Dynamo must be told of a compiled wrapper, and does not forget it.
_quick: dict[Callable[..., Any], tuple[Callable[..., Any], _State]] = {}


def _wrapped(original: Callable[..., Any]) -> tuple[Callable[..., Any], _State]:
    if type(original) is FunctionType and original in _quick:
        return _quick[original]
    state: _State = [original, False]
    tracing = torch.compiler.is_dynamo_compiling

    @wraps(original)
    def run_backward(t_outputs: Roots, *args: Any, **kwargs: Any) -> Any:
        if tracing() or not state[1]:
            return original(t_outputs, *args, **kwargs)
        return _recorded(original, t_outputs, *args, **kwargs)

    if not isinstance(run_backward, FunctionType):  # compiled, so that Dynamo can't look into it
        caches.stands_for(run_backward, original)
        if type(original) is FunctionType:
            _quick[original] = run_backward, state
    return run_backward, state


def _recorded(original: Callable[..., Any], t_outputs: Roots, *args: Any, **kwargs: Any) -> Any:
    retain = args[1] if len(args) > 1 else kwargs.get("keep_graph", False)
    call = BackwardCall(next(_ticks), raw_here(), _numbers(t_outputs), bool(retain), get_ident())
    history.append(call)
    if len(history) > _CALLS_WITH_NODES:
        history[-1 - _CALLS_WITH_NODES].visited.clear()
    running.append(call)
    try:
        if _Ears.before is not None and (_Ears.when is None or any(_Ears.when)):
            _Ears.before(call, t_outputs, args[0] if args else kwargs.get("grad_tensors"))
        scope = scopes.current()
        if scope is not None and scope.retain:  # the record says what the program asked for
            args, kwargs = _retained(args, kwargs)
        result = original(t_outputs, *args, **kwargs)
        call.outcome = "done"
    except BaseException as exc:
        call.outcome = "failed"
        if _Ears.failed is not None:
            _hear(_Ears.failed, call, exc, t_outputs)
        raise
    finally:
        running.remove(call)
    if _Ears.after is not None and (_Ears.then is None or any(_Ears.then)):
        _Ears.after(call, t_outputs)
    return result


def _retained(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call, without freeing its graph."""
    if len(args) > 1:  # the gradients, then whether the graph is kept
        return (args[0], True, *args[2:]), kwargs
    return args, {**kwargs, "keep_graph": True}


def _hear(failed: Failed, call: BackwardCall, exc: BaseException, roots: Roots) -> None:
    try:
        failed(call, exc, roots)
    except Exception as ours:
        unexplained(exc, ours)


def disarm() -> None:
    """Put both names back as they were. The history stays until `forget()`."""
    global _disarm
    if _disarm is not None:
        _disarm()
        _disarm = None


def armed() -> bool:
    return _disarm is not None


def forget() -> None:
    history.clear()


def _numbers(roots: Roots) -> tuple[int, ...]:
    return tuple([nodes.known(n)._sequence_nr() for n in map(nodes.start, roots) if n is not None])
