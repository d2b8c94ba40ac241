"""The backward calls of a run, for the stories told after one of them fails.

`Tensor.backward`, `torch.autograd.backward` and `torch.autograd.grad` all end in one function, which two modules
hold by name; both are wrapped. A record of a call holds numbers and raw sites only: a node or a tensor in it
would keep a whole graph alive.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from itertools import count
from threading import get_ident
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.autograd.graph as graph

from gradmend.capture.graph import engine_threads, nodes
from gradmend.capture.native.loading import compiled
from gradmend.capture.sites import Raw, raw_from, raw_here, resolve
from gradmend.capture.taps import caches
from gradmend.errors import unexplained
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
    # up with each node that a thread makes, so they order nodes and outlive them. The number is that of the newest
    # node when the Save was made, see who_ran().
    visited: dict[int, Raw] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()  # storages of the gradients that backward() itself was given, while watched

    @property
    def site(self) -> Site:
        return resolve(self.raw)

    @property
    def frame(self) -> Frame | None:
        return self.site.user


if compiled is not None and not TYPE_CHECKING:  # a struct, which the collector neither counts nor visits
    for _name in ("site", "frame"):
        setattr(compiled.BackwardCall, _name, vars(BackwardCall)[_name])
    BackwardCall = compiled.BackwardCall


Roots = Sequence[Any]  # tensors or GradientEdges
Before = Callable[[BackwardCall, Roots, Any], None]  # and the gradients that the call was given
After = Callable[[BackwardCall], None]
Failed = Callable[[BackwardCall, BaseException, Roots], None]

history: deque[BackwardCall] = deque(maxlen=_CALLS_KEPT)
running: list[BackwardCall] = []  # innermost last: a hook may start a backward of its own
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
    if compiled is not None:
        compiled.hear_backwards(before, after, failed, when, then)
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
    return _in_python(original, state), state


def _in_python(original: Callable[..., Any], state: _State) -> Callable[..., Any]:
    tracing = torch.compiler.is_dynamo_compiling

    @wraps(original)
    def run_backward(t_outputs: Roots, *args: Any, **kwargs: Any) -> Any:
        if tracing() or not state[1]:
            return original(t_outputs, *args, **kwargs)
        return _recorded(original, t_outputs, *args, **kwargs)

    return run_backward


def _recorded(original: Callable[..., Any], t_outputs: Roots, *args: Any, **kwargs: Any) -> Any:
    retain = args[1] if len(args) > 1 else kwargs.get("keep_graph", False)
    call = BackwardCall(next(_ticks), raw_here(2), _numbers(t_outputs), bool(retain), get_ident())
    history.append(call)
    if len(history) > _CALLS_WITH_NODES:
        history[-1 - _CALLS_WITH_NODES].visited.clear()
    running.append(call)
    try:
        if _Ears.before is not None and (_Ears.when is None or any(_Ears.when)):
            _Ears.before(call, t_outputs, args[0] if args else kwargs.get("grad_tensors"))
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
        _Ears.after(call)
    return result


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


def current() -> BackwardCall | None:
    """The call that this thread runs: its own, or that of the thread for which it works."""
    if not running:
        return None
    if len(running) > 1:
        lender = engine_threads.lender()
        found = _newest(get_ident()) or (_newest(lender.thread) if lender is not None else None)
        if found is not None:
            return found
    return running[-1]


def _newest(thread: int) -> BackwardCall | None:
    return next((call for call in reversed(running) if call.thread == thread), None)


def where(depth: int = 1) -> Raw:
    """The call chain above the caller. A thread of the engine's has no more than a hook in it: the chain goes on with
    that of the backward for which it works."""
    raw = raw_here(depth + 1)
    lender = engine_threads.lender()
    if lender is None:
        return raw
    call = _newest(lender.thread)
    return raw + (raw_from(sys._current_frames().get(lender.thread)) if call is None else call.raw)


def visit(number: int, raw: Raw) -> None:
    """The node now running asks for a Save made at `raw`. Called from the unpack hook, so it must be cheap."""
    call = current()
    if call is not None and not call.retain and len(call.visited) < _NODES_KEPT:
        call.visited[number] = raw


def who_ran(
    number: int, calls: Iterable[BackwardCall], others: Container[int]
) -> tuple[BackwardCall, Raw] | None:
    """The call that asked for a Save of the node of this number, and where that was made; None if none is known.

    To ask a node for its number at each Save would make an object of it (graphs.py), so what counts is the newest
    node when the Save was made. That is the node itself but for `x.pow_(2)`, which saves a clone: its node comes in
    between, and is none of the `others` of the graph.
    """
    for one in (number, number + 1):
        if one == number or one not in others:
            for call in calls:
                raw = call.visited.get(one)
                if raw is not None:
                    return call, raw
    return None


def _numbers(roots: Roots) -> tuple[int, ...]:
    numbers = []
    for root in roots:
        node = root.grad_fn if isinstance(root, _Tensor) else getattr(root, "node", None)
        if node is not None:
            nodes.known(node)
            numbers.append(node._sequence_nr())
    return tuple(numbers)


if compiled is not None:
    compiled.know_backwards(
        history,
        running,
        _ticks,
        torch._C.TensorBase.__dict__["grad_fn"],
        _numbers,
        _recorded,
        _hear,
        nodes.known,
        _CALLS_WITH_NODES,
    )
    _own: _State = [graph._engine_run_backward, False]
    _quick[_own[0]] = compiled.backward(_own), _own
    caches.stands_for(_quick[_own[0]][0], _own[0])
