"""Where every backward passes: it is recorded (graph/calls.py), and whoever watches or explains is called.

`Tensor.backward`, `torch.autograd.backward` and `torch.autograd.grad` all end in one function, which two modules
hold by name; both are wrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import count
from threading import get_ident
from typing import Any

import torch
import torch.autograd.graph as graph

from gradmend.capture.graph import nodes
from gradmend.capture.graph.calls import BackwardCall, Roots, history, running
from gradmend.capture.ledger import scopes
from gradmend.capture.sites import raw_here
from gradmend.errors import unexplained

_CALLS_WITH_NODES = 16

_ticks = count(1)
_tracing = torch.compiler.is_dynamo_compiling
# Our wrappers, each with the module that has it and what it had; none while disarmed.
_on: dict[Callable[..., Any], tuple[Any, Callable[..., Any]]] = {}


# Called as an exception leaves a backward.
Failed = Callable[[BackwardCall, BaseException, Roots], None]
# Called before each backward, with the gradients given to it; what that gives is called once it has ended, in whatever way.
# Roots are alive meanwhile; nobody must keep them.
Ended = Callable[[BackwardCall, Roots], None]
watchers: list[Callable[[BackwardCall, Roots, Any], Ended]] = []


def arm(failed: Failed | None = None) -> None:
    """Record each backward from now on."""
    if _on:
        raise RuntimeError("the recording of backward calls is armed already; disarm() it first")
    homes: list[Any] = [graph, torch.autograd]
    for home in homes:
        original = home._engine_run_backward
        wrapper = _wrapped(original, failed)
        _on[wrapper] = home, original
        home._engine_run_backward = wrapper


def disarm() -> None:
    """Put both names back as they were. The history stays until `forget()`."""
    while _on:
        wrapper, (home, original) = _on.popitem()
        if home._engine_run_backward is wrapper:
            home._engine_run_backward = original


def armed() -> bool:
    return bool(_on)


def forget() -> None:
    history.clear()


def _wrapped(original: Callable[..., Any], failed: Failed | None) -> Callable[..., Any]:
    @wraps(original)
    def run_backward(t_outputs: Roots, grad_tensors: Any, keep_graph: bool, *args: Any, **kwargs: Any) -> Any:
        # Whoever wrapped ours while it was on is left with one that only passes on.
        if _tracing() or run_backward not in _on:
            return original(t_outputs, grad_tensors, keep_graph, *args, **kwargs)
        return _recorded(failed, original, t_outputs, grad_tensors, keep_graph, args, kwargs)

    return run_backward


def _recorded(
    failed: Failed | None,
    original: Callable[..., Any],
    roots: Roots,
    grads: Any,
    retain: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    numbers = tuple([nodes.number(n) for n in map(nodes.start, roots) if n is not None])
    call = BackwardCall(next(_ticks), raw_here(), numbers, retain, get_ident())
    history.append(call)
    if len(history) > _CALLS_WITH_NODES:
        history[-1 - _CALLS_WITH_NODES].visited.clear()
    running.append(call)
    ended: list[Ended] = []
    try:
        ended += [watcher(call, roots, grads) for watcher in watchers]
        scope = scopes.current()
        if scope is not None and scope.retain:
            retain = True  # the record says what the program asked for
        result = original(roots, grads, retain, *args, **kwargs)
        call.outcome = "done"
    except BaseException as exc:
        call.outcome = "failed"
        _failed(failed, ended, call, exc, roots)
        raise
    finally:
        running.remove(call)
    for end in ended:
        end(call, roots)
    return result


def _failed(
    failed: Failed | None, ended: list[Ended], call: BackwardCall, error: BaseException, roots: Roots
) -> None:
    try:
        for end in ended:
            end(call, roots)
        if failed is not None:
            failed(call, error, roots)
    except Exception as ours:
        unexplained(error, ours)
