"""What every tap talks to: the ledger while Saves live, the recorder while it is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gradmend.capture.edits import live_edits
from gradmend.capture.edits.live_edits import Watched
from gradmend.capture.ledger.ledger import Ledger, Token
from gradmend.capture.memory.layouts import PLAIN
from gradmend.capture.native.loading import compiled
from gradmend.capture.taps import elements

LEDGER = Ledger()

# The flight recorder's ear, when installed: (op, targets, how) -> None, called after the write.
Listener = Callable[[str, Sequence[torch.Tensor], str], None]
listeners: list[Listener] = []

compiling = torch.compiler.is_compiling
_storage_of = torch._C.TensorBase.untyped_storage

# Neither a subclass nor a mode, whose __torch_function__ is called for whatever is done to a tensor, shall see us look.
overridden = torch._C._has_torch_function
unheard = torch._C.DisableTorchFunction


# Empty while nobody would listen, no Save living and no recorder on: what every tap looks at first.
awake = LEDGER.awake


def listen(listener: Listener) -> None:
    listeners.append(listener)
    awake.add("listeners")
    _shorten()


def unlisten(listener: Listener) -> None:
    if listener in listeners:
        listeners.remove(listener)
    if not listeners:
        awake.discard("listeners")
    _shorten()


def _shorten() -> None:
    """Compiled taps may leave their records straight in the recorder's ring while nobody else listens."""
    if compiled is not None:
        ring = getattr(listeners[0], "ring", None) if len(listeners) == 1 else None
        compiled.record_to(*((None, None) if ring is None else (ring.append, listeners[0].ticks)))  # type: ignore[attr-defined]


def only_recorded(t: torch.Tensor) -> bool:
    """Whether nobody but the recorder would listen to a write of this tensor, and it may look at it as it is."""
    return len(awake) == 1 and "listeners" in awake and type(t) in PLAIN and not overridden((t,))


_NONE: Mapping[str, Any] = {}


class Pending:
    __slots__ = ("edits", "how", "op", "targets", "token")

    def __init__(
        self,
        op: str,
        targets: Sequence[torch.Tensor],
        token: Token | None,
        how: str,
        edits: list[Watched] | None = None,
    ) -> None:
        self.edits = edits
        self.op = op
        self.targets = targets
        self.token = token
        self.how = how


def before(
    op: str,
    targets: Sequence[torch.Tensor],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    how: str = "data",
) -> Pending | None:
    if overridden(targets):
        with unheard():
            return _before(op, targets, args, kwargs, how)
    return _before(op, targets, args, kwargs, how)


def _before(
    op: str,
    targets: Sequence[torch.Tensor],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    how: str,
) -> Pending | None:
    token: Token | None = None
    saves = "saves" in awake
    if not saves and not live_edits.state.on:  # nobody but the recorder
        return Pending(op, targets, None, how) if "listeners" in awake else None
    # An op that overwrites what it has just saved (`x.mul_(x)`) matters even when no Save lives yet.
    aliased = bool(args) and how == "data" and torch.is_grad_enabled() and _aliased(targets, args)
    if saves or aliased:
        some = elements.elements_of(op, args, kwargs or {}) if op in elements.BY_OP else None
        token = LEDGER.before(op, targets, some, how, aliased)
    edited = live_edits.before(op, targets, how, args=args)
    if token is None and edited is None and "listeners" not in awake:
        return None
    return Pending(op, targets, token, how, edited)


def _aliased(targets: Sequence[torch.Tensor], args: Sequence[Any]) -> bool:
    """Whether an argument lies in the memory of the target: `x.mul_(x)`, `h[1] *= h[0]`."""
    try:
        for a in args:
            if (
                isinstance(a, torch.Tensor)
                and a.requires_grad
                and _storage_of(a)._cdata == _storage_of(targets[0])._cdata
            ):
                return True
    except RuntimeError:
        pass
    return False


def after(pending: Pending) -> None:
    if overridden(pending.targets):
        with unheard():
            return _after(pending)
    return _after(pending)


def carry(
    pending: Pending | None,
    original: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] = _NONE,
) -> Any:
    """The write itself, and then what is to be entered of it, also when it raised."""
    if pending is None:
        return original(*args, **kwargs)
    try:
        return original(*args, **kwargs)
    finally:
        after(pending)


def _after(pending: Pending) -> None:
    if pending.edits is not None:
        live_edits.after(pending.edits)
    if pending.token is not None:
        LEDGER.after(pending.token)
    told(pending.op, pending.targets, pending.how)


def told(op: str, targets: Sequence[torch.Tensor], how: str) -> None:
    """A write has happened, for those who only listen."""
    if "listeners" in awake:  # they sleep while an optimizer steps
        for listener in listeners:
            listener(op, targets, how)


def note(op: str, t: torch.Tensor, how: str) -> None:
    """The same for a write that is only_recorded()."""
    if compiled is None or not compiled.note(op, how, t):
        told(op, (t,), how)
