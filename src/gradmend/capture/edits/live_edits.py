"""Live edits: a tensor inside a graph is changed outside autograd (`.data`, no_grad, a detached alias).

Ops that use the tensor afterwards compute with the new value, while their gradient flows to the history of the
old one. Whether that is wrong shows only when the gradient arrives: at an edited element a zero is harmless
(`scores.data.masked_fill_(mask, -inf)` before a softmax), anything else is a Finding.

An Edit is kept by the node whose output was changed and dies with its graph. Leaves are no matter of ours, unless they
lie over such an output: changing them without a graph is how parameters are updated.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch._C import TensorBase as _Base
from torch.multiprocessing.reductions import StorageWeakRef

from gradmend.capture.edits.edit import Edit, Key, changed_places, takes_back
from gradmend.capture.graph import nodes
from gradmend.capture.ledger import scopes
from gradmend.capture.ledger.entries import Write, made_write, next_number
from gradmend.capture.memory.layouts import PLAIN, Layout, layout_of, physical
from gradmend.capture.sites import Raw, raw_here
from gradmend.capture.unseen import hidden, without_grad

try:
    import cython
except ImportError:
    from gradmend.capture.native import uncompiled as cython

_storage_of = _Base.untyped_storage
_detach = _Base.detach
_grad_mode = torch.is_grad_enabled
_MOST_ALIASES = 1024
_MOST_COPIED = 1 << 26  # bytes of a tensor whose memory is handed out
_ADDITIVE = frozenset({"add_", "sub_", "subtract_", "__iadd__", "__isub__"})


class _Alias(NamedTuple):
    """A graph tensor whose memory is also reachable by a tensor without history."""

    storage: StorageWeakRef
    tensor: weakref.ref[torch.Tensor]
    node: weakref.ref[_Anchor]
    key: Key
    layout: Layout


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Anchor:
    """Lives as long as its node does, in the node's metadata."""

    edits: list[Edit] = field(default_factory=list)
    handed: list[Handed] = field(default_factory=list)


@dataclass(slots=True, weakref_slot=True, eq=False)
class Handed:
    """The memory of a graph tensor was handed out beyond torch: what it held then, to be compared at backward."""

    key: Key
    now: torch.Tensor
    old: torch.Tensor
    scope: Any
    raw: Raw
    number: int


@cython.cclass
class _State:
    def __init__(self) -> None:
        self.on = False  # whether any context listens
        self.aliases: dict[int, _Alias] = {}
        self.sweep_at = _MOST_ALIASES  # so many of them, then those that are gone are let go
        self.pending: list[weakref.ref[Edit]] = []
        self.handed: list[weakref.ref[Handed]] = []
        self.inputs: list[list[torch.Tensor]] = []  # of the custom forwards that are running
        self.leaf_writes: list[tuple[torch.Tensor, Write]] = []
        self.views: list[
            tuple[weakref.ref[torch.Tensor], Any, Write]
        ] = []  # that got memory of their own by `.data =`


state = _State()
_state = state  # compiled, its attributes are C's own


def pending() -> bool:
    return bool(state.pending or state.handed or state.views)


def live() -> list[Edit]:
    """The edits whose graph is still there."""
    found = [e for ref in state.pending if (e := ref()) is not None and not e.void]
    if len(found) < len(state.pending):
        state.pending = [weakref.ref(e) for e in found]
    return found


# ---------------------------------------------------------------- who lies where


def owner_of(t: torch.Tensor) -> torch.Tensor:
    """The graph tensor whose memory `t` covers: its base where it is a view."""
    return t._base if t._is_view() and t._base is not None else t


def _anchor(node: Any) -> _Anchor:
    anchor = node.metadata.get("gradmend")
    if anchor is None:
        anchor = node.metadata["gradmend"] = _Anchor()
    return anchor


def _key(node: Any, t: torch.Tensor) -> Key:
    return node._sequence_nr(), node.name(), t.output_nr


def alias_by_leaf(t: torch.Tensor) -> None:
    """The memory of `t` comes under a leaf: writes to that one, which are nobody's business as a rule, are writes to `t`."""
    try:
        leaf = t.is_leaf
    except RuntimeError:
        return  # a view made under no_grad whose base was written since: PyTorch refuses to say more of it
    if not leaf:
        alias(t)


def alias(t: torch.Tensor) -> None:
    """`t.data` or `t.detach()` is being taken of a tensor with history: writes to it are writes to `t`."""
    try:
        owner = owner_of(t)
        if owner.is_leaf:
            return
        node = nodes.known(owner.grad_fn)
        storage = _storage_of(owner)
        known = state.aliases
        if len(known) > state.sweep_at:
            for key in [k for k, a in known.items() if a.storage.expired() or a.node() is None]:
                del known[key]
            state.sweep_at = max(_MOST_ALIASES, 2 * len(known))  # a long graph keeps them all
        known[storage._cdata] = _Alias(
            StorageWeakRef(storage),
            weakref.ref(owner),
            weakref.ref(_anchor(node)),
            _key(node, owner),
            layout_of(owner),
        )
    except (RuntimeError, AttributeError, ValueError, TypeError):
        pass  # no memory of its own: sparse, wrapped, of symbolic size, a lazy module's parameter


# ----------------------------------------------------------------------- writes


class Watched(NamedTuple):
    owner: torch.Tensor | None
    alias: _Alias | None
    region: torch.Tensor
    old: torch.Tensor
    op: str
    raw: Raw
    scope: Any
    shift: tuple[int, ...] | None = None
    still: bool = False


def unconcerned(t: torch.Tensor) -> bool:
    """Whether before() would find nothing to watch, as nearly always: autograd sees the write, or no graph lies there."""
    if _state.handed or type(t) not in PLAIN:
        return False
    tracked = t.requires_grad
    if tracked and _grad_mode():
        return True
    if t._is_view() or (_state.inputs if tracked else _state.aliases):
        return False
    if not tracked:
        return True
    return _lone_leaf(t)


def _lone_leaf(t: torch.Tensor) -> bool:
    # A leaf may lie over the memory of a graph tensor: nn.Parameter(y), nn.Parameter(y.detach()), w.set_(y), w.data = y.
    return t.is_leaf and not (_state.aliases and _storage_of(t)._cdata in _state.aliases)


def apart(parameters: Sequence[Any]) -> bool:
    """Whether no graph lies where an optimizer of these writes: leaves as a rule, but those that keep their gradient will do."""
    if not _state.on:
        return True
    if _state.handed or _state.inputs:
        return False
    for p in parameters:
        if type(p) not in PLAIN or p._is_view() or not _lone_leaf(p):
            return False
        grad = p.grad
        if grad is not None and grad.requires_grad:
            return False
    return True


def before(
    op: str,
    targets: Sequence[torch.Tensor],
    how: str = "data",
    region: torch.Tensor | None = None,
    args: Sequence[Any] = (),
) -> list[Watched] | None:
    """A write is about to happen. None, nearly always: autograd sees it itself, or no graph lies there."""
    if not state.on or how != "data":
        return None
    grad = _grad_mode()
    found: list[Watched] | None = None
    if state.handed:
        found = _elsewhere(op, targets)
        _settle(targets)
    for t in targets:
        try:
            if t.requires_grad:
                if grad and not op.startswith("dist."):  # autograd sees no collective
                    continue
                under = owner_of(t)
                known = _alias_of(under) if state.aliases and under.is_leaf else None
            elif state.aliases or (t._is_view() and owner_of(t).requires_grad):
                known = _alias_of(t)
                if known is None and not state.inputs:
                    continue  # as nearly always
                under = owner_of(t)
            else:
                continue
            owner = under if known is None else known.tensor()
            if owner is not None and owner.is_leaf and not (state.inputs and _is_input(owner)):
                continue
            shift, still = None, False
            if op in _ADDITIVE and args and not state.inputs:
                still = isinstance(args[0], (int, float, complex))  # the derivative is what it was
                shift = None if still else tuple(args[0].shape)
            scope = scopes.current()
            if scope is None or t.is_nested:
                continue  # nested: rows of their own lengths, so nothing to compare element by element
            part = _detach(t if region is None else region)
            old = _Base.clone(part)
        except (RuntimeError, AttributeError, TypeError, ValueError):
            continue
        if found is None:
            found = []
        found.append(Watched(owner, known, part, old, op, raw_here(), scope, shift, still))
    return found


def _elsewhere(op: str, targets: Sequence[torch.Tensor]) -> list[Watched] | None:
    """Writes to memory that was handed out, by a tensor over another storage: `torch.from_dlpack(h.detach()).mul_(2)`."""
    found: list[Watched] = []
    for t in targets:
        try:
            storage, scope = _storage_of(t), scopes.current()
            if storage.resizable() or scope is None or t.is_nested:
                continue  # memory of torch's own
            start = storage.data_ptr()
            for h in [h for ref in state.handed if (h := ref()) is not None]:
                under = _storage_of(h.now)
                by = start - under.data_ptr()
                layout = layout_of(t).shifted(by)
                if under._cdata == storage._cdata or layout.lo < 0 or layout.hi > under.nbytes():
                    continue
                alias = state.aliases.get(under._cdata)
                if alias is not None:
                    part = layout.over(under)
                    found.append(
                        Watched(alias.tensor(), alias, part, _Base.clone(part), op, raw_here(), scope)
                    )
        except (RuntimeError, AttributeError, TypeError, ValueError):
            continue
    if found:
        _settle([one.region for one in found])
    return found or None


def _alias_of(t: torch.Tensor) -> _Alias | None:
    key = _storage_of(t)._cdata
    known = state.aliases.get(key)
    if known is None and t._is_view() and not owner_of(t).is_leaf:
        alias(t)
        return state.aliases.get(key)
    if known is not None and (known.storage.expired() or (known.node() is None and known.tensor() is None)):
        del state.aliases[key]
        return None
    return known


def after(watched: list[Watched]) -> None:
    for one in watched:
        if _storage_of(one.region).nbytes() < layout_of(one.region).hi:
            continue  # the write shrank the storage: there is no value left to look at
        changed = changed_places(one.old, one.region)
        if changed is None:
            continue
        region = layout_of(physical(one.region))
        written = made_write(0, one.op, one.raw, region)
        owner = one.owner
        if owner is None:
            assert one.alias is not None
            anchor, key, layout = one.alias.node(), one.alias.key, one.alias.layout
            if anchor is None:
                continue
        else:
            node = nodes.known(owner.grad_fn)
            if node is None:
                state.leaf_writes.append((owner, written))
                continue
            anchor, key = _anchor(node), _key(node, owner)
            layout = layout_of(owner)
        old = one.old if one.old.shape == one.region.shape and one.old.nbytes <= _MOST_COPIED else None
        edit = Edit(key, layout, region, changed, one.scope, written, old, one.shift, one.still)
        for part in without_grad(takes_back, anchor.edits, edit, one.region):
            state.pending.append(weakref.ref(part))
        if edit.changed.any():
            _enter(anchor, edit)


def _enter(anchor: _Anchor, edit: Edit) -> None:
    anchor.edits.append(edit)
    state.pending.append(weakref.ref(edit))
    if len(state.pending) > 4096:
        live()


@hidden
def handed_out(t: torch.Tensor, raw: Raw) -> None:
    """`t.numpy()` of a tensor that shares memory with one inside a graph: writes to it leave no trace."""
    scope = scopes.current()
    if not state.on or scope is None:
        return
    try:
        known = _alias_of(t)
        owner = known.tensor() if known is not None else None
        node = nodes.known(owner.grad_fn) if owner is not None else None
        if owner is None or node is None or owner.numel() * owner.element_size() > _MOST_COPIED:
            return
        now = _detach(owner)
        record = Handed(_key(node, owner), now, _Base.clone(now), scope, raw, next_number())
        _anchor(node).handed.append(record)
        state.handed.append(weakref.ref(record))
    except (RuntimeError, AttributeError, TypeError, ValueError):
        pass


def _settle(targets: Sequence[torch.Tensor]) -> None:
    """A write that is seen changes handed-out memory: what it held before no longer tells of unseen ones."""
    try:
        keys = {_storage_of(t)._cdata for t in targets}
    except (RuntimeError, AttributeError):
        return
    state.handed = [
        ref for ref in state.handed if (h := ref()) is not None and _storage_of(h.now)._cdata not in keys
    ]


@hidden
def unseen() -> list[Edit]:
    """The edits that nobody saw being made, by comparing handed-out memory with what it held."""
    records = [h for ref in state.handed if (h := ref()) is not None]
    state.handed = [weakref.ref(h) for h in records]
    found = []
    for h in records:
        changed = changed_places(h.old, h.now)
        if changed is not None:
            layout = layout_of(physical(h.now))
            written = made_write(0, "numpy", h.raw, layout)
            edit = Edit(h.key, layout, layout, changed, h.scope, written, unsure=True, number=h.number)
            found.append(edit)
    return found


@hidden
def swapping(t: torch.Tensor) -> torch.Tensor | None:
    """`t.data = new` is about to happen: what `t` holds until then, where that matters."""
    return _detach(t) if state.on and not t.is_leaf and scopes.current() is not None else None


@hidden
def swapped(t: torch.Tensor, old: torch.Tensor) -> None:
    """From now on `t` is other memory with the same history."""
    new = _detach(t)
    changed = changed_places(old, new)
    if changed is not None:
        node = nodes.known(t.grad_fn)
        layout = layout_of(physical(new))
        written = made_write(0, ".data =", raw_here(), layout, "metadata")
        _enter(_anchor(node), Edit(_key(node, t), layout, layout, changed, scopes.current(), written))
        if t._is_view():
            state.views.append((weakref.ref(t), scopes.current(), written))


@hidden
def strayed() -> list[Edit]:
    """Edits of views with memory of their own whose base was written since: PyTorch gives them a new node, as if they still
    showed the base."""
    state.views = [one for one in state.views if one[0]() is not None]
    found = []
    for ref, scope, written in state.views:
        t = ref()
        if t is None or (base := t._base) is None or (node := nodes.known(t.grad_fn)) is None:
            continue
        key, layout = _key(node, t), layout_of(physical(_detach(t)))
        if any(edit.key == key for edit in live()) or _storage_of(t)._cdata == _storage_of(base)._cdata:
            continue
        everywhere = torch.ones(t.shape, dtype=torch.bool)
        # The op that first uses it makes its own node, then this one.
        found.append(Edit(key, layout, layout, everywhere, scope, written, number=key[0] - 1))
    return found


def _is_input(t: torch.Tensor) -> bool:
    return any(t is one for inputs in state.inputs for one in inputs)


# ----------------------------------------------------------------------- arming


def arm() -> None:
    state.on = True


def disarm() -> None:
    state.on = False
    state.aliases.clear()
    state.pending.clear()
    state.handed.clear()
    state.leaf_writes.clear()
    state.views.clear()
