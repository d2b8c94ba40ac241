"""Where every backward passes: it is recorded (graph/calls.py), and whoever listens is called back.

`Tensor.backward`, `torch.autograd.backward` and `torch.autograd.grad` all end in one function, which two modules
hold by name; both are wrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import count
from threading import get_ident
from typing import Any, NamedTuple

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


class Ears(NamedTuple):
    """Who is called back before a backward, after it, and when it raises."""

    before: Callable[[BackwardCall, Roots, Any], None] | None = None  # and the gradients given to the call
    # Roots are alive meanwhile; nobody must keep them.
    after: Callable[[BackwardCall, Roots], None] | None = None
    failed: Callable[[BackwardCall, BaseException, Roots], None] | None = None


NOBODY = Ears()


def arm(ears: Ears = NOBODY) -> None:
    """Record each backward from now on, and call back."""
    if _on:
        raise RuntimeError("the recording of backward calls is armed already; disarm() it first")
    homes: list[Any] = [graph, torch.autograd]
    for home in homes:
        original = home._engine_run_backward
        wrapper = _wrapped(original, ears)
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


def _wrapped(original: Callable[..., Any], ears: Ears) -> Callable[..., Any]:
    @wraps(original)
    def run_backward(t_outputs: Roots, *args: Any, **kwargs: Any) -> Any:
        # Whoever wrapped ours while it was on is left with one that only passes on.
        if _tracing() or run_backward not in _on:
            return original(t_outputs, *args, **kwargs)
        return _recorded(ears, original, t_outputs, *args, **kwargs)

    return run_backward


def _recorded(
    ears: Ears,
    original: Callable[..., Any],
    t_outputs: Roots,
    grad_tensors: Any,
    keep_graph: bool,
    *args: Any,
    **kwargs: Any,
) -> Any:
    call = BackwardCall(next(_ticks), raw_here(), _numbers(t_outputs), bool(keep_graph), get_ident())
    history.append(call)
    if len(history) > _CALLS_WITH_NODES:
        history[-1 - _CALLS_WITH_NODES].visited.clear()
    running.append(call)
    try:
        if ears.before is not None:
            ears.before(call, t_outputs, grad_tensors)
        scope = scopes.current()
        if scope is not None and scope.retain:
            keep_graph = True  # the record says what the program asked for
        result = original(t_outputs, grad_tensors, keep_graph, *args, **kwargs)
        call.outcome = "done"
    except BaseException as exc:
        call.outcome = "failed"
        if ears.failed is not None:
            try:
                ears.failed(call, exc, t_outputs)
            except Exception as ours:
                unexplained(exc, ours)
        raise
    finally:
        running.remove(call)
    if ears.after is not None:
        ears.after(call, t_outputs)
    return result


def _numbers(roots: Roots) -> tuple[int, ...]:
    return tuple([nodes.known(n)._sequence_nr() for n in map(nodes.start, roots) if n is not None])
