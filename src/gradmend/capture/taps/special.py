"""Writes and escapes that no op schema tells."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._C import TensorBase as Base
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from gradmend.capture.edits import live_edits
from gradmend.capture.ledger import escapes
from gradmend.capture.sites import _TORCH, raw_here
from gradmend.capture.taps import hub, refused, stand_ins, wrappers
from gradmend.capture.taps.schemas import Writes
from gradmend.capture.taps.stand_ins import Func
from gradmend.capture.taps.wrappers import overridden
from gradmend.capture.unseen import hidden
from gradmend.folder import OURS

OWN_METHODS = frozenset({"set_", "detach_"})


def wanted() -> Iterator[tuple[Any, str]]:
    """Every name that is looked for here. Those of to_dlpack come and go."""
    for owner, names, _ in _taps():
        yield from ((owner, name) for name in names.split() if "to_dlpack" not in name)
    if torch.distributed.is_available():
        yield from ((torch.distributed, name) for name in _COLLECTIVES if not name.startswith("_"))


def patches() -> Iterator[tuple[Any, str, Any]]:
    for owner, names, make in (*_taps(), *_collectives()):
        for name in names.split():
            if hasattr(owner, name):
                original = getattr(owner, name)
                yield owner, name, stand_ins.standing(owner, original, make(original, name))


def _taps() -> tuple[tuple[Any, str, Callable[[Any, str], Any]], ...]:
    """Whose names they are, and what makes a tap of what is found there."""
    top, packs = torch.Tensor, torch.utils.dlpack
    return (
        (top, "data", _data_property),
        (top, "real imag", _part_property),
        (top, "detach", _detaching),
        (torch, "detach", _detaching),
        (top, "set_", _swapping),
        (top, "_make_subclass", _made_subclass),
        (top, "detach_", _detaching_itself),
        (top, "numpy __array__ untyped_storage data_ptr storage __dlpack__", _escaping),
        (packs, "to_dlpack", _escaping),
        (torch, "to_dlpack", _escaping),
        (torch._C, "_to_dlpack", _escaping),
        (torch, "from_numpy frombuffer as_tensor asarray from_dlpack", _born),
        (packs, "from_dlpack", _born),
        (torch.UntypedStorage, "copy_ fill_ resize_ __setitem__ byteswap", _storage_write),
        (_unsafe_preserve_version_counter, "__exit__", _rewinding),
    )


def _unheard_by(t: torch.Tensor) -> AbstractContextManager[object]:
    """Hides what Gradmend asks of a tensor from its `__torch_function__` and from modes."""
    return hub.unheard() if overridden(t) else nullcontext()


def _data_property(slot: Any, name: str) -> property:
    def get(self: torch.Tensor) -> torch.Tensor:
        with _unheard_by(self):
            if self.requires_grad and not hub.compiling():
                live_edits.alias(self)
        return slot.__get__(self)

    def set_(self: torch.Tensor, new: torch.Tensor) -> None:
        if hub.compiling() or not hub.awake:
            return slot.__set__(self, new)
        with _unheard_by(self):
            done = hub.LEDGER.swapped(self, ".data =")
            old = live_edits.swapping(self)
        slot.__set__(self, new)
        with _unheard_by(self):
            live_edits.alias_by_leaf(new)
            done()
            if old is not None:
                live_edits.swapped(self, old)
        hub.told(".data =", (self,), "metadata")

    return property(get, set_, slot.__delete__)


def _part_property(slot: Any, part: str) -> property:
    def get(self: torch.Tensor) -> torch.Tensor:
        return slot.__get__(self)

    def set_(self: torch.Tensor, new: Any) -> None:
        if hub.compiling() or not hub.awake:
            return slot.__set__(self, new)
        target = slot.__get__(self)  # with its history: in grad mode autograd sees this write itself
        return hub.carry(hub.before(f".{part} =", (target,)), slot.__set__, (self, new))

    # `del x.real` ends the process in plain torch 2.13: here it is an AttributeError.
    return property(get, set_)


def _detaching(original: Func, name: str) -> Func:
    """`t.detach()` shares memory with `t`: a write to it is an edit of `t` that autograd does not see."""

    def tap(self: Any, *args: Any, **kwargs: Any) -> Any:
        if hub.compiling():
            return original(self, *args, **kwargs)
        with _unheard_by(self):
            if isinstance(self, torch.Tensor) and self.requires_grad:
                live_edits.alias(self)
        return original(self, *args, **kwargs)

    return tap


def _detaching_itself(original: Func, name: str) -> Func:
    """`t.detach_()`; of a view PyTorch refuses it."""
    tap = wrappers.method(original, name)

    def detach_(self: Any) -> Any:
        heard = bool(hub.awake) and not hub.compiling() and isinstance(self, torch.Tensor)
        done = hub.LEDGER.detaching(self) if heard and not overridden(self) else None
        try:
            out = tap(self)
        except RuntimeError as error:
            if hub.compiling() or not isinstance(self, torch.Tensor) or refused.detached(error, self) is None:
                raise
            return self
        if done is not None:
            done()
        return out

    return detach_


def _swapping(original: Func, op: str) -> Func:
    """`t.set_(...)`: other memory under the same tensor; the version counter steps."""

    def tap(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if hub.compiling() or not hub.awake:
            return original(self, *args, **kwargs)
        done = hub.LEDGER.swapped(self, op)
        out = hub.carry(hub.before(op, (self,), how="metadata"), original, (self, *args), kwargs)
        done()
        if args and isinstance(args[0], torch.Tensor):
            live_edits.alias_by_leaf(args[0])
        return out

    return tap


def _made_subclass(original: Func, name: str) -> Any:
    """`nn.Parameter(y)` is a leaf over the memory of `y`."""

    def tap(cls: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        if hub.awake and not hub.compiling() and isinstance(data, torch.Tensor):
            live_edits.alias_by_leaf(data)
        return original(cls, data, *args, **kwargs)

    return staticmethod(tap)


def _rewinding(original: Func, name: str) -> Func:
    """DDP's buffer sync puts version counters back: the steps that its writes were credited with are gone."""

    def tap(self: Any, *args: Any) -> None:
        if hub.compiling() or not hub.awake:
            return original(self, *args)
        before = [t._version for t in self.tensors]
        original(self, *args)
        for t, version in zip(self.tensors, before, strict=True):
            hub.LEDGER.rewound(t, version - t._version)
        return None

    return tap


def _from_inside() -> bool:
    """torch's own code and ours look at addresses and storages all the time; that hands nothing out."""
    return sys._getframe(2).f_code.co_filename.startswith((_TORCH, OURS))


_escaped = hidden(hub.LEDGER.escaped)


def _escaping(original: Func, how: str) -> Func:
    def tap(self: Any, *args: Any, **kwargs: Any) -> Any:
        out = original(self, *args, **kwargs)
        # `numpy()` of another dtype or device, or with force=True, may be a copy: one mark too many is harmless.
        if not hub.compiling() and isinstance(self, torch.Tensor) and not _from_inside():
            try:
                with _unheard_by(self):
                    _escaped(self, how)
                    if "numpy" in how or "dlpack" in how:
                        live_edits.handed_out(self, raw_here())
            except RuntimeError:
                pass  # no memory of its own: sparse, wrapped
        return out

    return tap


def _born(original: Func, how: str) -> Func:
    def tap(*args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        if not hub.compiling() and isinstance(out, torch.Tensor) and not (args and args[0] is out):
            try:
                with _unheard_by(out):
                    storage = Base.untyped_storage(out)
                    if not storage.resizable():
                        escapes.note(storage, how)
                    # from_dlpack(y.detach()): two storages over one memory.
                    if args and isinstance(args[0], torch.Tensor):
                        _escaped(args[0], how)
                        live_edits.handed_out(args[0], raw_here())
            except RuntimeError:
                pass
        return out

    return tap


def _storage_write(original: Func, name: str) -> Func:
    def tap(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if hub.compiling() or not hub.awake or self.device.type == "meta":
            return original(self, *args, **kwargs)
        whole = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self, 0, (self.nbytes(),), (1,))
        return hub.carry(hub.before(f"storage.{name}", (whole,)), original, (self, *args), kwargs)

    return tap


# Collectives: which argument they fill, by position and by name.
_COLLECTIVES = {
    "all_reduce": (0, "tensor"),
    "all_reduce_coalesced": (0, "tensors"),
    "broadcast": (0, "tensor"),
    "reduce": (0, "tensor"),
    "all_gather": (0, "tensor_list"),
    "all_gather_into_tensor": (0, "output_tensor"),
    "all_gather_coalesced": (0, "output_tensor_lists"),
    "gather": (1, "gather_list"),
    "scatter": (0, "tensor"),
    "reduce_scatter": (0, "output"),
    "reduce_scatter_tensor": (0, "output"),
    "all_to_all": (0, "output_tensor_list"),
    "all_to_all_single": (0, "output"),
    "recv": (0, "tensor"),
    "irecv": (0, "tensor"),
    "_broadcast_coalesced": (1, "tensors"),
}


def _collectives() -> Iterator[tuple[Any, str, Callable[[Any, str], Any]]]:
    import torch.distributed as dist

    if dist.is_available():
        import torch.distributed.distributed_c10d as c10d

        names = " ".join(_COLLECTIVES)
        yield from ((owner, names, _collective) for owner in (dist, c10d))


def _collective(original: Func, name: str) -> Func:
    fills = Writes((_COLLECTIVES[name],))

    def tap(*args: Any, **kwargs: Any) -> Any:
        if hub.compiling() or not hub.awake:
            return original(*args, **kwargs)
        pending = hub.before(f"dist.{name}", fills.given(args, kwargs))
        return hub.carry(pending, original, args, kwargs)

    return tap
