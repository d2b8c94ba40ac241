"""Memory handed out beyond torch: noted on the storage, and from then on watched by fingerprint."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from gradmend.capture.memory.layouts import has_values, layout_of, physical
from gradmend.capture.sites import Raw, raw_here
from gradmend.capture.unseen import hidden
from gradmend.own_imports import own_imports

_MARK = "_gradmend_escape"
CHANGED = -1  # in place of a fingerprint: the value is lost
FREED = -2  # in place of a fingerprint: the storage held no bytes for the tensor
_address = torch._C.TensorBase.data_ptr
_storage_of = torch._C.TensorBase.untyped_storage
_transforming = torch._C._are_functorch_transforms_active
known: set[str] = set()  # how any was ever handed out while we looked


def note(storage: torch.UntypedStorage, how: str) -> Raw:
    """Remember the line that handed this memory out (the first one stays)."""
    known.add(how)
    site: Raw | None = getattr(storage, _MARK, None)
    if site is None:
        site = raw_here()
        setattr(storage, _MARK, site)
    return site


def of(storage: torch.UntypedStorage) -> Raw | None:
    """Where the memory was handed out; an empty site where that was before we looked.

    A storage over foreign memory, and one that `.numpy()` was called on, can't be resized any more. Other processes
    write to shared memory.
    """
    site: Raw | None = getattr(storage, _MARK, None)
    if site is None and is_foreign(storage):
        return ()
    return site


def is_foreign(storage: torch.UntypedStorage) -> bool:
    return not storage.resizable() or (storage.is_shared() and storage.device.type == "cpu")


@cache
def _hash() -> Callable[[Any], int]:
    with own_imports():
        import xxhash

    return xxhash.xxh3_64_intdigest


@hidden
def fingerprint(t: torch.Tensor) -> int:
    """A hash of the tensor's bytes that sees permutations and balanced changes."""
    if _transforming():
        with torch._C._DisableFuncTorch():  # else what we make of it is a wrapper, without memory
            return _of_bytes(t)
    return _of_bytes(t)


def _of_bytes(t: torch.Tensor) -> int:
    t = physical(t.detach())
    if t._is_zerotensor():
        t = t.clone()  # forward mode makes zeros with a storage, and with no memory under it
    if t.numel() == 0 or not has_values(t):
        return 0
    if t.layout is torch.strided and _storage_of(t).nbytes() < layout_of(t).hi:
        return FREED  # resized, as reversible layers and FSDP do
    if t.device.type != "cpu":
        t = t.cpu()
    if not t.is_contiguous():
        t = t.contiguous()
    # Not by Tensor.numpy(): that name may be tapped, and it makes the storage unresizable for good.
    memory = (ctypes.c_char * t.nbytes).from_address(_address(t))
    return _hash()(memory)
