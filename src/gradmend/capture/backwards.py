"""The backward calls of a run, for the stories told after one of them fails.

`Tensor.backward`, `torch.autograd.backward` and `torch.autograd.grad` all end in one function, which two modules
hold by name; both are wrapped. A record of a call holds numbers and raw sites only: a node or a tensor in it
would keep a whole graph alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from itertools import count
from threading import get_ident
from typing import Any, Literal

import torch
import torch.autograd.graph as graph

from gradmend.capture.sites import Raw, raw_here, resolve
from gradmend.model import Frame, Site

_Tensor = torch.Tensor
_CALLS_KEPT = 64
_CALLS_WITH_NODES = 16
_NODES_KEPT = 4096  # in one call


@dataclass(slots=True, eq=False)
class BackwardCall:
    """One backward: where it was called, from which roots, and what became of it."""

    tick: int
    raw: Raw
    roots: tuple[int, ...]  # sequence numbers of the roots' nodes
    retain: bool
    thread: int = 0
    outcome: Literal["running", "done", "failed"] = "running"
    # Sequence number of each node that asked for a Save -> where that Save was made. Sequence numbers count
    # up with each node that a thread makes, so they order nodes and outlive them.
    visited: dict[int, Raw] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()  # storages of the gradients that backward() itself was given, while watched

    @property
    def site(self) -> Site:
        return resolve(self.raw)

    @property
    def frame(self) -> Frame | None:
        return self.site.user


Roots = Sequence[Any]  # tensors or GradientEdges
Before = Callable[[BackwardCall, Roots, Any], None]  # and the gradients that the call was given
After = Callable[[BackwardCall], None]
Failed = Callable[[BackwardCall, BaseException, Roots], None]

history: deque[BackwardCall] = deque(maxlen=_CALLS_KEPT)
running: list[BackwardCall] = []  # innermost last: a hook may start a backward of its own
_ticks = count(1)
_disarm: Callable[[], None] | None = None


def arm(
    before: Before | None = None,
    after: After | None = None,
    failed: Failed | None = None,
    *,
    site: Callable[[int], Raw] = raw_here,
) -> None:
    """Record each backward from now on, and call back before it, after it, and when it raises.

    `failed` gets the roots too, while they are alive; it must not keep them.
    """
    global _disarm
    if _disarm is not None:
        raise RuntimeError("the recording of backward calls is armed already; disarm() it first")
    live = True
    tracing = torch.compiler.is_dynamo_compiling

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def run_backward(t_outputs: Roots, *args: Any, **kwargs: Any) -> Any:
            if not live or tracing():
                return original(t_outputs, *args, **kwargs)
            retain = args[1] if len(args) > 1 else kwargs.get("keep_graph", False)
            call = BackwardCall(next(_ticks), site(2), _numbers(t_outputs), bool(retain), get_ident())
            history.append(call)
            if len(history) > _CALLS_WITH_NODES:
                history[-1 - _CALLS_WITH_NODES].visited.clear()
            running.append(call)
            try:
                if before is not None:
                    before(call, t_outputs, args[0] if args else kwargs.get("grad_tensors"))
                result = original(t_outputs, *args, **kwargs)
                call.outcome = "done"
            except BaseException as exc:
                call.outcome = "failed"
                if failed is not None:
                    _hear(failed, call, exc, t_outputs)
                raise
            finally:
                running.remove(call)
            if after is not None:
                after(call)
            return result

        return run_backward

    homes: list[Any] = [graph, torch.autograd]
    originals = [home._engine_run_backward for home in homes]
    wrappers = [wrapped(original) for original in originals]
    for home, wrapper in zip(homes, wrappers, strict=True):
        home._engine_run_backward = wrapper

    def disarm() -> None:
        # Whoever wrapped us meanwhile is left with a wrapper that only passes on.
        nonlocal live
        live = False
        for home, original, wrapper in zip(homes, originals, wrappers, strict=True):
            if home._engine_run_backward is wrapper:
                home._engine_run_backward = original

    _disarm = disarm


def _hear(failed: Failed, call: BackwardCall, exc: BaseException, roots: Roots) -> None:
    """An error of ours must not take the place of the one it should explain."""
    try:
        failed(call, exc, roots)
    except Exception as ours:
        exc.add_note(f"gradmend could not explain this error: {type(ours).__name__}: {ours}")


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


def current() -> BackwardCall | None:
    """The call that this thread runs; a device's own thread has none, and works for the newest."""
    if not running:
        return None
    if len(running) > 1:
        me = get_ident()
        for call in reversed(running):
            if call.thread == me:
                return call
    return running[-1]


def visit(node: Any, raw: Raw) -> None:
    """The node now running asks for a Save made at `raw`. Called from the unpack hook, so it must be cheap."""
    call = current()
    if call is not None and not call.retain and len(call.visited) < _NODES_KEPT:
        call.visited[node._sequence_nr()] = raw


def _numbers(roots: Roots) -> tuple[int, ...]:
    numbers = []
    for root in roots:
        node = root.grad_fn if isinstance(root, _Tensor) else getattr(root, "node", None)
        if node is not None:
            numbers.append(node._sequence_nr())
    return tuple(numbers)
