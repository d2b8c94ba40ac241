"""What the audit's second backward does besides its gradients, undone: memory that it writes, random numbers that it draws.

A checkpointed region computes its forward again in each backward, with its running statistics; hooks and custom
backwards may count in a buffer. The taps see these writes. What such code does to Python objects stays.
"""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gradmend.capture import edge
from gradmend.capture.graph import engine_threads
from gradmend.capture.ledger.scopes import Scope
from gradmend.capture.memory.layouts import Layout, has_values, layout_of
from gradmend.capture.sites import raw_here
from gradmend.capture.taps.hub import LEDGER
from gradmend.capture.unseen import hidden

# Not the names on torch.Tensor, which are tapped.
_Base: Any = torch._C.TensorBase
_copy, _clone, _base_of = _Base.copy_, _Base.clone, _Base.__dict__["_base"].__get__
_set_version = torch._C._autograd._unsafe_set_version_counter
_upgraded: Any = torch.UntypedStorage._new_with_weak_ptr


class _Old:
    """A region before its first write, and the tensor that carries the version counter."""

    __slots__ = ("bytes", "carrier", "layout", "storage", "version")

    def __init__(self, t: torch.Tensor, layout: Layout, storage: torch.UntypedStorage) -> None:
        root = _base_of(t)
        carrier = t if root is None else root
        self.storage = StorageWeakRef(storage)  # most of what a recomputation writes, it made itself
        self.layout = layout
        self.bytes: torch.Tensor = _clone(layout.over(storage))
        self.carrier: weakref.ref[torch.Tensor] = edge.ref(carrier)
        self.version = None if carrier.is_inference() else carrier._version

    def put_back(self) -> None:
        storage = _upgraded(self.storage.cdata)
        if storage is None or storage.nbytes() < self.layout.hi:
            return
        _copy(self.layout.over(storage), self.bytes)  # on a counter of its own
        t = self.carrier()
        if t is not None and self.version is not None and (steps := t._version - self.version) > 0:
            _set_version((t,), (self.version,))
            LEDGER.rewound(t, steps)


class _Rewritten:
    def __init__(self) -> None:
        self.thread = get_ident()
        self.old: dict[tuple[int, Layout], _Old] = {}
        self._most = 32

    def about_to(self, t: torch.Tensor, region: Layout | None) -> None:
        """The ledger says: this is about to be written."""
        if get_ident() != self.thread:
            lender = engine_threads.lender()
            if lender is None or lender.thread != self.thread:
                return  # another thread of the program's goes on meanwhile
        try:
            storage = _Base.untyped_storage(t)
        except RuntimeError:
            return  # a wrapper of torch.func: it goes with its transform
        if not has_values(t) or not storage.nbytes():
            return
        layout = layout_of(t) if region is None else region
        key = storage._cdata, layout
        if key in self.old:
            return
        if len(self.old) >= self._most:
            self.old = {k: one for k, one in self.old.items() if not one.storage.expired()}
            self._most = 32 + 2 * len(self.old)
        with torch.no_grad():
            self.old[key] = _Old(t, layout, storage)

    @hidden
    def put_back(self) -> None:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for old in reversed(self.old.values()):  # where two overlap, the first has the oldest bytes
                old.put_back()


@contextmanager
def undone(scope: Scope, began: Callable[[], None]) -> Iterator[None]:
    """Inside, random numbers are those that `began` draws again; afterwards they and memory are as they were before."""
    now = random_states()
    began()
    mine = _Rewritten()
    # While a Save lives, no tap passes.
    awake = LEDGER.save(torch.empty(1), scope, raw_here())
    LEDGER.about_to.append(mine.about_to)
    try:
        yield
    finally:
        LEDGER.about_to.remove(mine.about_to)
        del awake
        mine.put_back()
        now()


def random_states() -> Callable[[], None]:
    """The generators that a program has without making one. Call what comes back to put them where they are now."""
    states: list[tuple[Callable[[Any], object], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (random.setstate, random.getstate()),
    ]
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        states.append((numpy.set_state, numpy.get_state()))
    device = torch.accelerator.current_accelerator()
    module: Any = None if device is None else torch.get_device_module(device)
    if getattr(module, "is_initialized", bool)() and hasattr(module, "get_rng_state"):
        states.append((module.set_rng_state, module.get_rng_state()))

    def put_back() -> None:
        for put, state in states:
            put(state)

    return put_back
