"""What every tap talks to: the ledger while Saves live, the recorder while it is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gradmend.capture import edge
from gradmend.capture.edits import live_edits
from gradmend.capture.edits.live_edits import Watched, unconcerned
from gradmend.capture.ledger.ledger import Ledger, Token
from gradmend.capture.memory.layouts import PLAIN, layout_at
from gradmend.capture.taps import elements, leaf_writes, refused
from gradmend.capture.unseen import seen, unseen

try:
    import cython
except ImportError:
    from gradmend.capture.native import uncompiled as cython

LEDGER = Ledger()
_ledger = LEDGER  # compiled, its calls are C's own
_edits = live_edits.state
_grad_mode = torch.is_grad_enabled
_is_basic, _BY_OP = edge.is_basic, elements.BY_OP

# The flight recorder's ear, when installed: (op, targets, how) -> None, called after the write.
Listener = Callable[[str, Sequence[torch.Tensor], str], None]
listeners: list[Listener] = []

compiling = torch.compiler.is_compiling
_storage_of = torch._C.TensorBase.untyped_storage
_view_of = torch._C.TensorBase.__getitem__
_detach = torch._C.TensorBase.detach
_modes = torch._C._len_torch_dispatch_stack

# Neither a subclass nor a mode, whose __torch_function__ is called for whatever is done to a tensor, shall see us look.
overridden = torch._C._has_torch_function
unheard = torch._C.DisableTorchFunction


# Empty while nobody would listen, no Save living and no recorder on: what every tap looks at first.
awake = LEDGER.awake
_awake = awake  # compiled, a set and no other object


def listen(listener: Listener) -> None:
    listeners.append(listener)
    awake.add("listeners")


def unlisten(listener: Listener) -> None:
    if listener in listeners:
        listeners.remove(listener)
    if not listeners:
        awake.discard("listeners")


def only_recorded(t: torch.Tensor) -> bool:
    """Whether nobody but the recorder would listen to a write of this tensor, and it may look at it as it is."""
    return len(_awake) == 1 and "listeners" in _awake and type(t) in PLAIN and not overridden((t,))


_NONE: Mapping[str, Any] = {}


@cython.no_gc
@cython.cclass
class Pending:
    """A write that is under way: what has to be entered once it has happened."""

    __slots__ = ("edits", "how", "op", "overlooked", "targets", "token")

    op: str
    targets: Sequence[torch.Tensor]
    token: Token | None
    how: str
    edits: list[Watched] | None
    overlooked: bool  # a mode or a subclass of the program's may look


def _pending(
    op: str,
    targets: Sequence[torch.Tensor],
    token: Token | None,
    how: str,
    edits: list[Watched] | None = None,
) -> Pending:
    made: Pending = Pending.__new__(Pending)
    made.op = op
    made.targets = targets
    made.token = token
    made.how = how
    made.edits = edits
    made.overlooked = False
    return made


def before(
    op: str,
    targets: Sequence[torch.Tensor],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    how: str = "data",
) -> Pending | None:
    over = overridden(targets)
    if over and len(_awake) == 1 and "listeners" in _awake:
        return None  # the recorder hears of it when a `__torch_function__` calls the op that it was given
    if over or _modes():
        return _overlooked(_before, (op, targets, args, kwargs, how))
    return _before(op, targets, args, kwargs, how)


def _overlooked(work: Callable[..., Pending | None], args: tuple[Any, ...]) -> Pending | None:
    pending: Pending | None = _out_of_sight(work, *args)
    if pending is not None:
        pending.overlooked = True
    return pending


def _out_of_sight(work: Callable[..., Any], *args: Any) -> Any:
    """Work of ours while a mode or a subclass of the program's may look."""
    with unheard():
        if seen():
            with unseen():
                return work(*args)
        return work(*args)


def _before(
    op: str,
    targets: Sequence[torch.Tensor],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    how: str,
) -> Pending | None:
    token: Token | None = None
    saves = "saves" in _awake
    if "views" in _awake and how == "data":
        refused.written(targets)
    if not saves and not _edits.on:  # nobody but the recorder
        return _pending(op, targets, None, how) if "listeners" in _awake else None
    # An op that overwrites what it has just saved (`x.mul_(x)`) matters even when no Save lives yet.
    aliased = how == "data" and _grad_mode() and _aliased(targets, args, kwargs or _NONE)
    if saves or aliased:
        some = elements.elements_of(op, args, kwargs or {}) if op in _BY_OP else None
        token = _ledger.before(op, targets, some, how, aliased)
    edited = None
    # A collective is no op that autograd sees.
    alone = len(targets) == 1 and op[:5] != "dist."
    if _edits.on and not (alone and unconcerned(targets[0])):
        edited = live_edits.before(op, targets, how, args=args)
    if token is None and edited is None and "listeners" not in _awake:
        return None
    return _pending(op, targets, token, how, edited)


def _aliased(targets: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an argument that the op may save lies in the memory of a target: `x.mul_(x)`, `h[1] *= h[0].detach()`."""
    given: list[torch.Tensor] = []
    for a in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(a, torch.Tensor):
            given.append(a)
        elif isinstance(a, (list, tuple)):  # of a foreach op
            given += [one for one in a if isinstance(one, torch.Tensor)]
    if not given or not _tracked(given, targets):
        return False
    try:
        written = [_storage_of(t)._cdata for t in targets]
        for one in given:
            if _storage_of(one)._cdata in written:
                return True
    except RuntimeError:
        pass
    return False


def _tracked(given: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> bool:
    return any(t.requires_grad for t in given) or any(t.requires_grad for t in targets)


def after(pending: Pending) -> None:
    if pending.overlooked:
        _out_of_sight(_after, pending)
    else:
        _after(pending)


def carry(
    pending: Pending | None,
    original: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] = _NONE,
) -> Any:
    """The write itself, and then what is to be entered of it, also when it raised."""
    try:
        return original(*args, **kwargs) if kwargs else original(*args)
    except RuntimeError as error:
        if refused.renewed(error, args):
            return original(*args, **kwargs)
        if not leaf_writes.is_update(error, args):
            raise
        with torch.no_grad():
            return original(*args, **kwargs)
    finally:
        if pending is not None:
            after(pending)


def _after(pending: Pending) -> None:
    if pending.edits is not None:
        live_edits.after(pending.edits)
    if pending.token is not None:
        _ledger.after(pending.token)
    told(pending.op, pending.targets, pending.how)


def told(op: str, targets: Sequence[torch.Tensor], how: str) -> None:
    """Reports a write that has happened to the listeners."""
    if "listeners" not in _awake:
        return
    if overridden(targets):
        with unheard():  # an uninitialized parameter refuses every question, a logging subclass records it
            _notify(op, targets, how)
    else:
        _notify(op, targets, how)


def _notify(op: str, targets: Sequence[torch.Tensor], how: str) -> None:
    for listener in listeners:
        listener(op, targets, how)


def heard(
    call: Callable[..., Any],
    op: str,
    how: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """A method that writes its first argument, while somebody listens."""
    t = args[0]
    if only_recorded(t):
        out = call(*args, **kwargs) if kwargs else call(*args)
        told(op, (t,), how)
        return out
    pending = before(op, (t,), args[1:], kwargs, how)
    return carry(pending, call, args, kwargs or _NONE)


def heard_item(
    call: Callable[..., Any],
    op: str,
    how: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """`t[key] = value`, while somebody listens."""
    if len(args) != 3 or kwargs:
        return call(*args, **(kwargs or {}))  # PyTorch will say what is wrong with it
    t, key = args[:2]
    over = overridden((t,))
    if over and type(t) not in PLAIN:
        pending = before(op, (t,))  # a subclass may index as it likes: all of it may be written
    elif over or _modes():
        pending = _overlooked(_before_item, (t, key))
    else:
        pending = _before_item(t, key)
    return carry(pending, call, args)


def _before_item(t: torch.Tensor, key: Any) -> Pending:
    """A slice is a region, a mask or an index a set of elements."""
    token: Token | None = None
    edited = None
    saves = "saves" in _awake
    if "views" in _awake:
        refused.written((t,))
    region = layout_at(t, key) if saves else None
    basic = region is not None or _is_basic(key)
    edits = _edits.on and not unconcerned(t)
    needed = edits or "listeners" in _awake or (saves and region is None)
    part = _part(t, key) if basic and needed else t
    if saves:
        some = None if basic else elements.elements_of("__setitem__", (key,), _NONE)
        token = _ledger.before("__setitem__", (part if region is None else t,), some, "data", False, region)
    if edits:
        edited = live_edits.before("__setitem__", (t,), region=part if basic else None)
    return _pending("__setitem__", (part,), token, "data", edited)


def _part(t: torch.Tensor, key: Any) -> torch.Tensor:
    """What of a tensor a slice is; the tensor where PyTorch will say what is wrong with the key."""
    try:
        return _view_of(_detach(t), key)
    except (IndexError, TypeError, RuntimeError, ValueError):
        return t
