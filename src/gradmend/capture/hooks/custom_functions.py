"""Custom autograd.Functions: tensors hung on ctx are Saves, and a forward that writes its input unmarked is told.

`apply` may be bound to a name before we are armed, and is a builtin since 2.15. However it is reached, it makes a ctx and
asks the class for `forward`, then for `setup_context`: it is given ours. Every backward of one passes through
`BackwardCFunction.apply`, which is wrapped.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd import function as _function

from gradmend.capture.edits.arrivals import saves_of
from gradmend.capture.graph import calls, nodes
from gradmend.capture.hooks import gradients
from gradmend.capture.hooks.custom_forwards import Inside
from gradmend.capture.ledger import scopes
from gradmend.capture.ledger.entries import Counter, next_number
from gradmend.capture.ledger.escapes import FREED
from gradmend.capture.ledger.findings import SilentFinding
from gradmend.capture.ledger.scopes import Scope
from gradmend.capture.ledger.unguarded import Kept
from gradmend.capture.sites import Raw, raw_here
from gradmend.capture.taps import hub
from gradmend.errors import GradmendError

_KEPT, _NUMBER, _LATE = "_gradmend_kept", "_gradmend_number", "_gradmend_late"
_Single: Any = _function._SingleLevelFunction
_Backward: Any = _function.BackwardCFunction
_Meta: Any = _function.FunctionMeta
_plain_look_up = type.__getattribute__
_compiling = torch.compiler.is_compiling
_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_default: Any = torch.Tensor.__torch_function__
_disabled = torch._C._disabled_torch_function_impl


def _answers(value: Any) -> bool:
    """A tensor that can be asked. A subclass with a `__torch_function__` of its own may refuse any question, and
    torch.func's are gone when it is done."""
    if not isinstance(value, torch.Tensor) or _wrapped(value):
        return False
    how: Any = type(value).__torch_function__
    return how is _disabled or getattr(how, "__func__", None) is _default.__func__


# ------------------------------------------------------------------------ forward


class _Local(threading.local):
    ctx: Any = None  # just made, and its forward not yet looked up
    tracked = True  # in grad mode
    # Class, ctx and inputs (None: nothing is tracked) of a forward whose setup_context comes next.
    setup: tuple[Any, Any, Inside | None] | None = None


_local = _Local()


def _made(self: Any, *args: Any, **kwargs: Any) -> None:
    """A ctx is born: its class is asked for `forward` next."""
    _local.ctx = None if scopes.current() is None or _compiling() else self
    _local.tracked = torch.is_grad_enabled()


def _look_up(cls: Any, name: str) -> Any:
    found = _plain_look_up(cls, name)
    if name == "forward":
        ctx, _local.ctx = _local.ctx, None
        if ctx is not None and type(ctx) is _plain_look_up(cls, "_backward_cls"):
            return functools.partial(_forward, found, cls, ctx)
    elif name == "setup_context" and _local.setup is not None and _local.setup[0] is cls:
        _, ctx, seen = _local.setup
        _local.setup = None
        return functools.partial(_setup, found, cls, ctx, seen)
    return found


def _forward(forward: Any, cls: Any, ctx: Any, *args: Any, **kwargs: Any) -> Any:
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    inputs = [a for a in tensors if _answers(a) and a.requires_grad]
    seen: Inside | None = None
    if not _local.tracked or (not inputs and all(map(_answers, tensors))):
        out = forward(*args, **kwargs)
    else:
        with Inside(ctx, inputs) as seen:
            out = forward(*args, **kwargs)
    if _plain_look_up(cls, "setup_context") is _Single.setup_context:
        _finish(cls, ctx, seen)
    else:
        _local.setup = cls, ctx, seen
    return out


def _setup(setup: Any, cls: Any, ctx: Any, seen: Inside | None, *args: Any) -> Any:
    out = setup(*args)
    _finish(cls, ctx, seen)
    return out


def _finish(cls: Any, ctx: Any, seen: Inside | None) -> None:
    dirty = [d for d in ctx.dirty_tensors or () if _answers(d)]
    if dirty:
        hub.LEDGER.steps_ahead(dirty)  # apply() steps the counter of what is marked once more
    scope = scopes.current()
    if scope is None or seen is None:
        return
    number = ctx._sequence_nr()
    if next_number() - 1 != number:  # its forward made nodes of its own, and saves after them
        ctx.__dict__[_NUMBER] = number
    _keep(ctx, cls, scope, dirty, seen.inputs)
    written = seen.unmarked(dirty)
    if written is not None and scope.policy == "watch":
        raise _told(scope, SilentFinding("GM206", [written], made=raw_here(), op=cls.__name__))
    if seen.late is not None:
        finding = SilentFinding("GM206", [seen.late], made=raw_here(), op=cls.__name__, facts={"why": "late"})
        if written is None:  # marked: backward may want the result, and may want what was there before
            finding.doubt = True
            scope.tell(finding)
        else:
            ctx.__dict__[_LATE] = scope, finding
            ctx.__dict__["apply"] = functools.partial(_later, weakref.ref(ctx))


def _told(scope: Any, finding: SilentFinding) -> BaseException:
    error = scope.tell(finding)
    assert isinstance(error, BaseException)
    return error


Path = tuple[Any, ...]  # to a tensor on ctx: an attribute, then items of containers and fields of dataclasses
_DEEPEST = 5
_OVERWRITING = frozenset(("copy_", "fill_", "zero_", "__setitem__"))


def _keep(
    ctx: Any, cls: type, scope: Scope, dirty: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> None:
    """Enter the tensors that ctx holds by attribute into the ledger; they live as long as ctx does."""
    held = ctx.__dict__
    marked = [Counter(d) for d in dirty]
    kept: list[tuple[Path, Kept]] = []
    raw = raw_here()
    for path, t in _tensors(held, ctx._sequence_nr()):
        if type(t) is torch.Tensor and t.is_leaf and t.requires_grad and not any(t is i for i in inputs):
            continue  # the leaf of a graph of its own, as in _tensors()
        entry = _entered(t, scope, raw, path[0], cls)
        entry.version += sum(c.carried_by(t) for c in marked)  # as apply() is about to
        kept.append((path, entry))
    if kept:
        held[_KEPT] = kept
        # Its own, so that it is asked also when the context was left, and the class's is plain again.
        held["apply"] = functools.partial(_later, weakref.ref(ctx))


def _entered(t: torch.Tensor, scope: Scope, raw: Raw, attribute: str, function: type) -> Kept:
    entry = hub.LEDGER.save(t, scope, raw, Kept)
    assert isinstance(entry, Kept)
    entry.attribute, entry.function = attribute, function
    return entry


def _tensors(value: Any, number: int, path: Path = ()) -> Iterator[tuple[Path, torch.Tensor]]:
    """Tensors in containers and dataclasses, and where in them they are. One that was computed in this forward with a
    graph of its own is left to that: its Saves are guarded as all are."""
    if _answers(value):
        node = nodes.known(value.grad_fn) if value.requires_grad else None
        if node is None or node._sequence_nr() <= number:
            yield path, value
    elif len(path) < _DEEPEST:
        for step, inner in _items(value):
            yield from _tensors(inner, number, (*path, step))


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, (list, tuple, deque)):
        return list(enumerate(value))
    if isinstance(value, dict):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    return ()


# ----------------------------------------------------------------------- backward


_plain_backward = _Backward.apply
_plain_boxed = getattr(_Backward, "apply_boxed", None)


def _later(ctx: Callable[[], Any], *args: Any) -> Any:
    return _guarded(_plain_backward, ctx(), args)


def _backward(self: Any, *args: Any) -> Any:
    return _guarded(_plain_backward, self, args)


def _backward_boxed(self: Any, *args: Any) -> Any:
    return _guarded(_plain_boxed, self, args)


def _guarded(call: Any, ctx: Any, args: tuple[Any, ...]) -> Any:
    if _compiling():
        return call(ctx, *args)
    held = ctx.__dict__
    late = held.get(_LATE)
    if late is not None and not late[0].plain:
        raise _told(*late)
    number = held.get(_NUMBER)
    if number is not None:
        for entry in saves_of(ctx):
            entry.number = number
    kept: list[tuple[Path, Kept]] | None = held.get(_KEPT)
    if kept is None:
        return gradients.given(call, ctx, args)
    calls.visit(ctx._sequence_nr(), kept[0][1].raw)
    # Where a value was put, the value and its version, and what was there.
    healed: list[tuple[Path, Kept, torch.Tensor, int, Any]] = []
    for path, entry in kept:
        if entry.print == FREED:
            continue  # forward kept no value of it: what lies there is the program's own doing
        value = hub.LEDGER.ask(entry)
        if entry.scope.plain or (value is entry.handle and not entry.swaps):
            continue
        _refuse_second_order(entry)
        healed.append((path, entry, value, value._version, _found(held, path)))
        _put(held, path, value)
    hub.LEDGER.settle()
    marks = [entry.timeline.last if entry.timeline else 0 for _, entry in kept]
    try:
        return gradients.given(call, ctx, args)
    finally:
        for path, _, value, _, was in reversed(healed):
            if _found(held, path) is value:  # unless backward has put another there
                _put(held, path, was)
        _renew(kept, marks)
        for _, entry, value, version, _ in healed:
            if value._version != version and value is not entry.handle:
                raise GradmendError(
                    f"gradmend.heal(): backward of {entry.function.__name__} writes to ctx.{entry.attribute}, which was "
                    "overwritten since forward; such a value can't be healed. Keep a clone of it on ctx"
                )


def _renew(kept: list[tuple[Path, Kept]], marks: list[int]) -> None:
    """What backward itself fills anew is its scratch memory: a second backward need not find it as it was."""
    for i, ((path, entry), mark) in enumerate(zip(kept, marks, strict=True)):
        timeline = entry.timeline
        if timeline is None or timeline.last <= mark:
            continue
        op = next((w.op for w in timeline.log if w.tick > mark), "")
        original = entry.original() if entry.original else None
        if original is not None and (op in _OVERWRITING or op.endswith("(out=)")):
            kept[i] = path, _entered(original, entry.scope, entry.raw, entry.attribute, entry.function)


def _put(held: Any, path: Path, value: Any) -> None:
    """Containers stay the objects they are, as backward may write to them: only tuples are made anew."""
    *above, step = path
    holder = _found(held, above)
    if step not in dict(_items(holder)):
        return  # an earlier backward has taken it away
    if isinstance(holder, tuple):
        items = [value if i == step else item for i, item in enumerate(holder)]
        again = type(holder)(*items) if hasattr(holder, "_fields") else type(holder)(items)
        _put(held, tuple(above), again)
    elif isinstance(holder, (list, deque, dict)):
        holder[step] = value
    else:
        object.__setattr__(holder, step, value)  # frozen ones too


def _found(held: Any, path: Sequence[Any]) -> Any:
    """What lies there now; None where backward has taken it away."""
    for step in path:
        held = dict(_items(held)).get(step)
    return held


def _refuse_second_order(entry: Kept) -> None:
    original = entry.original() if entry.original else None
    if torch.is_grad_enabled() and original is not None and original.requires_grad:
        raise GradmendError(
            f"gradmend.heal(): backward of {entry.function.__name__} is being differentiated itself (create_graph=True), "
            f"and ctx.{entry.attribute} was overwritten since forward: its old value has no history to differentiate. "
            "Use ctx.save_for_backward and write out of place"
        )


def patches() -> Iterator[tuple[Any, str, Any]]:
    yield _Backward, "__init__", _made
    yield _Meta, "__getattribute__", _look_up
    yield _Backward, "apply", _backward
    if _plain_boxed is not None:
        yield _Backward, "apply_boxed", _backward_boxed
