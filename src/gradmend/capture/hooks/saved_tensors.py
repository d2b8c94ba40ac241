"""Saved-tensor hooks: how Saves enter the ledger, also below hooks of other people's.

PyTorch applies the innermost pair of hooks only, so a pair entered inside ours is entered as a composition: theirs
packs and unpacks as it would, and whatever tensor memory they kept is entered as a Save. torch.func refuses
hooks: ours step aside while it runs.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.weak import WeakIdKeyDictionary

from gradmend.capture.graph import calls, engine_threads
from gradmend.capture.graph.calls import visit
from gradmend.capture.hooks import given_back
from gradmend.capture.hooks.given_back import Given
from gradmend.capture.ledger import scopes
from gradmend.capture.ledger.composites import Pieces, has_parts
from gradmend.capture.ledger.entries import Save, next_number
from gradmend.capture.ledger.scopes import Scope, own
from gradmend.capture.ledger.version_steps import key_of
from gradmend.capture.memory.layouts import PLAIN
from gradmend.capture.sites import Raw, raw_here, resolve
from gradmend.capture.taps.hub import LEDGER
from gradmend.errors import GradmendWarning, refusal

_C = torch._C._autograd
_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter
_running = calls.running
_STRIDED = torch.strided
_storage_of = torch._C.TensorBase.untyped_storage
_detach = torch._C.TensorBase.detach  # the name on torch.Tensor is tapped
_modes = torch._C._len_torch_dispatch_stack
_dispatch_mode, _PROXY = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.PROXY
_are_allowed: Callable[[], bool] = _C._saved_tensors_hooks_is_enabled  # type: ignore[attr-defined]
_ledger = LEDGER  # compiled, its calls are C's own


class _Local(threading.local):
    pushed = False


_local = _Local()


def _pack(t: torch.Tensor) -> Any:
    mine = own()
    opened = mine or scopes.opened()
    if not opened:
        return _Unwatched(_detach(t), t._version)
    if _modes() and _dispatch_mode(_PROXY) is not None:
        return _traced(t)
    raw = raw_here() if mine else calls.where()
    kind = type(t)
    if (
        (kind is _Tensor or kind is _Parameter) and t.layout is _STRIDED and not t.is_nested
    ) or not has_parts(t):
        return _ledger.save(t, opened[-1], raw)
    return Pieces(_ledger, t, opened[-1], raw)


def _traced(t: torch.Tensor) -> _Unwatched:
    """What PyTorch itself keeps while make_fx writes a graph down: of a node's own output a detached alias, which the graph
    shows; else the tensor."""
    node = t.grad_fn
    is_output = node is not None and node._sequence_nr() == next_number() - 1
    return _Unwatched(_detach(t) if is_output else t, t._version)


class _Unwatched(NamedTuple):
    """Kept while our hooks are on and no scope is: below hooks PyTorch itself checks nothing."""

    tensor: torch.Tensor
    version: int

    def ask(self) -> torch.Tensor:
        if self.tensor._version != self.version:
            raise RuntimeError(refusal(str(self.tensor.dtype).removeprefix("torch."), self.tensor.shape))
        return self.tensor


def _unpack(packed: Any) -> torch.Tensor:
    if type(packed) is Save:
        save: Save = packed
        if _running:
            visit(save.number, save.raw)
        return _ledger.ask(save)
    if _running and type(packed) is Pieces:
        visit(packed.number, packed.raw)
    return packed.ask()


_hooks: tuple[Callable[..., Any], Callable[..., Any]] = _pack, _unpack


# ------------------------------------------------------------------ other people's hooks


# The Save of a tensor that inner hooks made over the saved memory: beside it, so that the program can copy and pickle it.
_entries: WeakIdKeyDictionary = WeakIdKeyDictionary()


class _Packed(NamedTuple):
    """What inner hooks made of a tensor, with a Save for each tensor in it."""

    made: Any
    site: tuple[Scope, Raw] | None = None  # of hooks that are the program's own
    given: Given | None = None  # where it shows no tensor
    guard: Save | None = None  # where it shows none, and holds the memory of the saved one


def _holders(t: torch.Tensor) -> int:
    """How many refer to a tensor or its memory."""
    try:
        return sys.getrefcount(t) + torch._C._storage_Use_Count(_storage_of(t)._cdata)
    except RuntimeError:
        return 0


def _shows_a_tensor(made: Any) -> bool:
    if isinstance(made, (tuple, list)):
        return any(map(_shows_a_tensor, made))
    if isinstance(made, dict):
        return any(map(_shows_a_tensor, made.values()))
    return isinstance(made, _Tensor)


class _Own(NamedTuple):
    """A tensor in other memory that inner hooks made, an offload buffer say: it must come back as it was, too."""

    tensor: torch.Tensor
    save: Save


def _each(made: Any, change: Callable[[Any], Any]) -> Any:
    """The same containers, with what is in them changed."""
    if type(made) in (tuple, list):
        return type(made)(_each(m, change) for m in made)
    if type(made) is dict:
        return {key: _each(m, change) for key, m in made.items()}
    return change(made)


def _entered(made: Any, t: torch.Tensor, scope: Scope, raw: Raw) -> Any:
    if not isinstance(made, _Tensor):
        return made
    shared = key_of(made) != 0 and key_of(made) == key_of(t)
    if not shared and (type(made) not in PLAIN or made.layout is not _STRIDED or made.is_nested):
        return made
    save = LEDGER.save(made, scope, raw)
    save.unchecked = True
    if not shared:
        return _Own(made, save)
    if made is not t:
        _entries[made] = save
    return save


def _asked(made: Any, packed: _Packed) -> Any:
    if type(made) is Save:
        return LEDGER.ask(made, packed)
    if type(made) is _Own:
        value = LEDGER.ask(made.save, packed)
        return made.tensor if value is made.save.handle else value  # the very object, unless it was healed
    return made


def _compose(
    pack: Callable[..., Any], unpack: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def outer_pack(t: torch.Tensor) -> Any:
        held = _holders(t)
        made = pack(t)
        keeps = _holders(t) > held  # in an object of its own, say
        scope = scopes.current()
        if scope is None:
            return _Packed(made)
        raw = calls.where()
        kept = _each(made, lambda one: _entered(one, t, scope, raw))
        opaque = not internal and not _shows_a_tensor(made)
        if not opaque:
            return _Packed(kept, None if internal else (scope, raw))
        if not keeps or key_of(t) == 0:
            return _Packed(kept, (scope, raw), given_back.given(t, scope, raw))
        guard = LEDGER.save(t, scope, raw)
        guard.unchecked = True
        return _Packed(kept, (scope, raw), None, guard)

    def outer_unpack(packed: Any) -> torch.Tensor:
        value = unpack(_each(packed.made, lambda one: _asked(one, packed)))
        if packed.given is not None:
            given_back.check(packed.given, value, unpack)
        if packed.guard is not None:
            right = LEDGER.ask(packed.guard, packed)
            if right is not packed.guard.handle and key_of(value) == key_of(packed.guard.handle):
                value = right
        if packed.site is not None:
            given_back.handed_out(value, *packed.site)
        # A checkpoint hands out what its recomputation packed, and that run may have overwritten it since.
        entry = _entries.get(value)
        return value if entry is None else LEDGER.ask(entry, packed)

    internal = getattr(pack, "__module__", None) == "torch.utils.checkpoint"
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
    return _local.pushed or (_are_allowed() and not scopes.local.scopes and bool(scopes.opened()))


def _push() -> None:
    """Ours on top. Hooks that were on before us go on working below: we must change nothing."""
    outer = _C._top_saved_tensors_default_hooks(False)
    _C._push_saved_tensors_default_hooks(*(_compose(*outer) if outer else _hooks))
    _local.pushed = bool(scopes.local.scopes)


# ------------------------------------------------------------------ torch.func


_DISABLED = (
    "gradmend: saved-tensor hooks are disabled here, so Gradmend can't see what ops keep for backward: inside, only PyTorch's own "
    "check finds an overwritten tensor, and heal() heals nothing"
)
_plain_disable = _C._saved_tensors_hooks_disable
_plain_enable = _C._saved_tensors_hooks_enable


def _disable(message: str, *rest: Any) -> None:
    """torch.func and others refuse hooks: ours are taken off while they run, if they are the only ones."""
    top = _C._top_saved_tensors_default_hooks(False)
    if not _are_on() or top is None or top[0] is not _hooks[0]:
        return _plain_disable(message, *rest)
    line = (
        None
        if message.startswith("torch.func") or torch.compiler.is_compiling()
        else resolve(raw_here()).user
    )
    if line is not None:
        warnings.warn_explicit(_DISABLED, GradmendWarning, line.file, line.line)
    _C._pop_saved_tensors_default_hooks()
    _local.pushed = False
    try:
        _plain_disable(message, *rest)
    except BaseException:
        _push()
        raise


def _enable() -> None:
    _plain_enable()
    if not _local.pushed and scopes.opened():
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
    # Inside torch.func nobody may enter hooks: PyTorch's own check stays on there.
    if not _local.pushed and _are_allowed():
        _push()


def close_scope(scope: Scope) -> None:
    if scope in scope.among:
        scope.among.remove(scope)
    # Left in another thread, a generator's: its own still has our hooks on, until it enters a context again.
    if scope.among is scopes.local.scopes and not scope.among and _local.pushed:
        _C._pop_saved_tensors_default_hooks()
        _local.pushed = False
