"""Saved-tensor hooks: how Saves enter the ledger, also below hooks of other people's.

PyTorch applies the innermost pair of hooks only, so a pair entered inside ours is entered as a composition: theirs
packs and unpacks as it would, and whatever tensor memory they kept is entered as a Save. torch.func refuses
hooks: ours step aside while it runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from gradmend.capture.graph import calls, engine_threads
from gradmend.capture.graph.calls import visit
from gradmend.capture.hooks import optimizer_steps
from gradmend.capture.ledger import scopes
from gradmend.capture.ledger.composites import Pieces, has_parts
from gradmend.capture.ledger.entries import Save
from gradmend.capture.ledger.scopes import Scope
from gradmend.capture.memory.layouts import PLAIN
from gradmend.capture.sites import Raw, raw_here
from gradmend.capture.taps.hub import LEDGER
from gradmend.errors import refusal

_C = torch._C._autograd
_Tensor = torch.Tensor
_asleep = optimizer_steps.asleep
_running = calls.running
_scopes = scopes.local
_STRIDED = torch.strided
_ledger = LEDGER  # compiled, its calls are C's own


class _Local(threading.local):
    def __init__(self) -> None:
        self.pushed = False
        self.aside = 0


_local = _Local()


def _pack(t: torch.Tensor) -> Any:
    own = _scopes.scopes
    opened = own or scopes.opened()
    if not opened:
        return _Unwatched(t)
    if _asleep:  # a step that raised: an optimizer's own step saves nothing
        optimizer_steps.wake()
    raw = raw_here() if own else calls.where()
    if type(t) in PLAIN and t.layout is _STRIDED and not t.is_nested:
        return _ledger.save(t, opened[-1], raw)
    return _save(t, opened[-1], raw)


class _Unwatched:
    """Kept while our hooks are on and no scope is: below hooks PyTorch itself checks nothing."""

    __slots__ = ("tensor", "version")

    def __init__(self, t: torch.Tensor) -> None:
        self.tensor = t.detach()
        self.version = t._version

    def ask(self) -> torch.Tensor:
        if self.tensor._version != self.version:
            raise RuntimeError(refusal(str(self.tensor.dtype).removeprefix("torch."), self.tensor.shape))
        return self.tensor


def _save(t: torch.Tensor, scope: Scope, raw: Raw) -> Save | Pieces:
    return Pieces(LEDGER, t, scope, raw) if has_parts(t) else LEDGER.save(t, scope, raw)


def _unpack(packed: Any) -> torch.Tensor:
    if type(packed) is Save:
        save: Save = packed
        if _running:
            visit(save.number, save.raw)
        return _ledger.ask(save)
    if type(packed) is _Unwatched:
        return packed.ask()
    if _running:
        visit(packed.number, packed.raw)
    return packed.ask() if type(packed) is Pieces else _ledger.ask(packed)


_hooks: tuple[Callable[..., Any], Callable[..., Any]] = _pack, _unpack


# ------------------------------------------------------------------ other people's hooks


class _Packed:
    """What inner hooks made of a tensor, with a Save for each tensor in it."""

    __slots__ = ("made",)

    def __init__(self, made: Any) -> None:
        self.made = made


class _Own:
    """A tensor in other memory that inner hooks made, an offload buffer say: it must come back as it was, too."""

    __slots__ = ("save", "tensor")

    def __init__(self, tensor: torch.Tensor, save: Save) -> None:
        self.tensor = tensor
        self.save = save

    def ask(self, packed: _Packed) -> torch.Tensor:
        value = LEDGER.ask(self.save, packed)
        return self.tensor if value is self.save.handle else value  # the very object, unless it was healed


def _shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        one = torch._C.TensorBase.untyped_storage
        return one(a)._cdata == one(b)._cdata
    except RuntimeError:
        return False


def _enter_all(made: Any, t: torch.Tensor, save: Callable[..., Save]) -> Any:
    if isinstance(made, _Tensor):
        if _shares(made, t):
            return save(made, made is not t)
        plain = type(made) in PLAIN and made.layout is torch.strided and not made.is_nested
        return _Own(made, save(made, False)) if plain else made
    if type(made) in (tuple, list):
        return type(made)(_enter_all(m, t, save) for m in made)
    if type(made) is dict:
        return {key: _enter_all(m, t, save) for key, m in made.items()}
    return made


def _ask_all(made: Any, packed: _Packed) -> Any:
    if type(made) is Save:
        return LEDGER.ask(made, packed)
    if type(made) is _Own:
        return made.ask(packed)
    if type(made) in (tuple, list):
        return type(made)(_ask_all(m, packed) for m in made)
    if type(made) is dict:
        return {key: _ask_all(m, packed) for key, m in made.items()}
    return made


def _compose(
    pack: Callable[..., Any], unpack: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def outer_pack(t: torch.Tensor) -> Any:
        made = pack(t)
        scope = scopes.current()
        if scope is None:
            return _Packed(made)
        raw = calls.where()

        def save(m: torch.Tensor, another: bool) -> Save:
            entry = LEDGER.save(m, scope, raw)
            entry.unchecked = True
            if another:
                m._gradmend_entry = entry  # type: ignore[attr-defined]
            return entry

        return _Packed(_enter_all(made, t, save))

    def outer_unpack(packed: Any) -> torch.Tensor:
        value = unpack(_ask_all(packed.made, packed))
        # A checkpoint hands out what its recomputation packed, and that run may have overwritten it since.
        entry = getattr(value, "_gradmend_entry", None)
        return value if entry is None else LEDGER.ask(entry, packed)

    outer_pack.theirs = pack, unpack  # type: ignore[attr-defined]
    return outer_pack, outer_unpack


def users_hooks() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """The innermost hooks that are neither ours nor a checkpoint's own: what a checkpoint since 2.14 asks for."""
    hooks: Any = _C._top_saved_tensors_default_hooks(False)
    while hooks is not None:
        if hooks[0] is _hooks[0]:
            return None  # ours lie below all others, unless somebody's were on before: then they are composed
        hooks = getattr(hooks[0], "theirs", hooks)
        if not getattr(hooks[0], "_checkpoint_internal", False):
            return hooks
        hooks = hooks[0]._user_hooks
    return None


_plain_enter = saved_tensors_hooks.__enter__


def _enter(self: saved_tensors_hooks) -> None:
    if not _are_on() or torch.compiler.is_compiling():
        return _plain_enter(self)
    _C._push_saved_tensors_default_hooks(*_compose(self.pack_hook, self.unpack_hook))


def _are_on() -> bool:
    """Whether ours are on in this thread: the engine's threads get the hooks of those for whom they work."""
    return _local.pushed or (not _local.aside and not scopes.local.scopes and bool(scopes.opened()))


def _push() -> None:
    """Ours on top. Hooks that were on before us go on working below: we must change nothing."""
    outer = _C._top_saved_tensors_default_hooks(False)
    _C._push_saved_tensors_default_hooks(*(_compose(*outer) if outer else _hooks))
    _local.pushed = bool(scopes.local.scopes)


# ------------------------------------------------------------------ torch.func


_plain_disable = _C._saved_tensors_hooks_disable
_plain_enable = _C._saved_tensors_hooks_enable


def _disable(message: str, *rest: Any) -> None:
    """torch.func and others refuse hooks: take ours off while they run, if ours are the only ones."""
    if _local.aside == 0 and _are_on():
        _C._pop_saved_tensors_default_hooks()
        _local.pushed = False
        try:
            _plain_disable(message, *rest)
        except BaseException:
            _push()
            raise
        _local.aside = 1
        return
    _plain_disable(message, *rest)


def _enable() -> None:
    _plain_enable()
    if _local.aside:
        _local.aside = 0
        if scopes.opened():
            _push()


def patches() -> Iterator[tuple[Any, str, Any]]:
    yield saved_tensors_hooks, "__enter__", _enter
    yield _C, "_saved_tensors_hooks_disable", _disable
    yield _C, "_saved_tensors_hooks_enable", _enable


def open_scope(scope: Scope) -> None:
    if not scopes.local.scopes:
        engine_threads.lend(scopes.local.scopes)
    scope.among = scopes.local.scopes
    scope.among.append(scope)
    if not _C._saved_tensors_hooks_is_enabled():  # type: ignore[attr-defined]
        _local.aside = 1  # inside torch.func nobody may enter hooks: PyTorch's own check stays on there
    if not _local.pushed and not _local.aside:
        _push()


def close_scope(scope: Scope) -> None:
    if scope in scope.among:
        scope.among.remove(scope)
    # Left in another thread, a generator's: its own still has our hooks on, until it enters a context again.
    if scope.among is scopes.local.scopes and not scope.among:
        _local.aside = 0
        if _local.pushed:
            _C._pop_saved_tensors_default_hooks()
            _local.pushed = False
