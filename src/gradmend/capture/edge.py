"""The edge: what is asked of a tensor and of its memory at every op. In C where that was built, else the same in Python.

Nothing here knows a rule of the ledger. `chosen` is the one place that takes the compiled form of a name or the Python one.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from gradmend.capture.native import loading

_Base: Any = torch._C.TensorBase  # the names on torch.Tensor may be tapped
_Memory: Any = torch._C.StorageBase
_stride, _offset, _view_of, _detach = _Base.stride, _Base.storage_offset, _Base.__getitem__, _Base.detach
_nbytes = _Base.__dict__["nbytes"].__get__
_version = _Base.__dict__["_version"].__get__

PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))  # the classes that override nothing

Grid = tuple[
    int, torch.dtype, tuple[int, ...], tuple[int, ...]
]  # offset, dtype, shape and strides, in elements
# A written tensor: its address, its bytes from first to last, its layout in them if it has gaps, and its version.
Place = tuple[int, int, Any, int]


def chosen(name: str, in_python: Any) -> Any:
    return in_python if loading.edge is None else getattr(loading.edge, name)


def tell(name: str, *facts: Any) -> None:
    """What the compiled form must know, once."""
    if loading.edge is not None:
        getattr(loading.edge, name)(*facts)


def grid(t: torch.Tensor) -> Grid | None:
    """Where the elements of a tensor lie; None where that takes more than four numbers."""
    if type(t) not in PLAIN or t.is_nested:
        return None
    return _offset(t), t.dtype, t.shape, _stride(t)


def is_basic(key: Any) -> bool:
    """Indexing that makes a view: ints, slices, None, Ellipsis."""
    parts = key if isinstance(key, tuple) else (key,)
    return all(
        p is None or p is Ellipsis or isinstance(p, slice) or (isinstance(p, int) and not isinstance(p, bool))
        for p in parts
    )


def grid_at(t: torch.Tensor, key: Any) -> Grid | None:
    """The same of `t[key]`, for an index of numbers and slices; None for any other."""
    if not is_basic(key):
        return None
    try:
        return grid(_view_of(_detach(t), key))
    except (IndexError, TypeError, RuntimeError, ValueError):
        return None  # PyTorch will say what is wrong with the key


def _place(t: torch.Tensor) -> Place | None:
    """Of a tensor without gaps; None for any other."""
    return (_Base.data_ptr(t), _nbytes(t), None, t._version) if _Base.is_contiguous(t) else None


def _places(params: Sequence[torch.Tensor]) -> list[Place] | None:
    """Of those that have a gradient; None where one has gaps."""
    found = [_place(p) for p in params if p.grad is not None]
    return None if None in found else found  # type: ignore[return-value]


def _copy_out(t: torch.Tensor, storage: torch.UntypedStorage, lo: int, hi: int) -> bytes | None:
    """The bytes of a storage of the CPU; None where they can't be read."""
    if type(t) not in PLAIN or not t.is_cpu or storage.nbytes() < hi:
        return None
    address = storage.data_ptr()
    return ctypes.string_at(address + lo, hi - lo) if address else None


def _fill(t: torch.Tensor, old: bytes) -> bool:
    """Bytes into a new tensor that takes up just so many."""
    if type(t) not in PLAIN or not t.is_cpu or _nbytes(t) != len(old):
        return False
    ctypes.memmove(_Base.data_ptr(t), old, len(old))
    return True


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool | None:
    """Equal bit by bit; None where that takes more than to compare memory."""
    return None


tell(
    "know_facts",
    getattr(torch.Tensor, "__dlpack_c_exchange_api__", None),  # an older torch has no such table
    _Base.__dict__["dtype"],
    _offset,
    PLAIN,
)
tell(
    "know_memory",
    _Base.is_contiguous,
    _Base.data_ptr,
    *(_Base.__dict__[name] for name in ("nbytes", "_version", "grad", "is_cpu")),
    _Memory.data_ptr,
    _Memory.nbytes,
)

place = chosen("place", _place)
places = chosen("places", _places)
copy_out = chosen("copy_out", _copy_out)
fill = chosen("fill", _fill)
same_bytes = chosen("same_bytes", _same_bytes)
version = chosen("version", _version)  # of its counter
ref = chosen("ref", weakref.ref)  # in C, one that the garbage collector need not look at: it leads nowhere
