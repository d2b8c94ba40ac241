"""The edge: what is asked of a tensor and of its memory at every op. In C where that was built, else the same in Python.

Nothing here knows a rule of the ledger. `chosen` is the one place that takes the compiled form of a name or the Python one.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from typing import Any

import torch

from gradmend.capture.native import loading

_Base: Any = torch._C.TensorBase  # the names on torch.Tensor may be tapped
_Memory: Any = torch._C.StorageBase
_stride, _offset, _view_of, _detach = _Base.stride, _Base.storage_offset, _Base.__getitem__, _Base.detach
_nbytes = _Base.__dict__["nbytes"].__get__
_version = _Base.__dict__["_version"]

PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))  # the classes that override nothing

# Offset, dtype, shape and strides, in elements.
Grid = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...]]


# The globals, by id, of the code whose writes the taps pass on while no Save lives; filled while an optimizer steps.
quiet: set[int] = set()


def chosen(name: str, in_python: Any) -> Any:
    return in_python if loading.edge is None else getattr(loading.edge, name)


def tell(name: str, *facts: Any) -> None:
    """What the compiled form must know, once."""
    if loading.edge is not None:
        getattr(loading.edge, name)(*facts)


def passed_on(awake: set[str]) -> bool:
    """Whether the line that calls the tap that asks is of such code."""
    return "saves" not in awake and id(sys._getframe(2).f_globals) in quiet


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


tell("know_quiet", quiet)
tell(
    "know_facts",
    getattr(torch.Tensor, "__dlpack_c_exchange_api__", None),  # an older torch has no such table
    _Base.__dict__["dtype"],
    _version,
    _offset,
    _Memory.data_ptr,
    _Memory.nbytes,
    *PLAIN,
)
copy_out = chosen("copy_out", _copy_out)
fill = chosen("fill", _fill)
version = chosen("version", _version.__get__)  # of its counter
ref = chosen("ref", weakref.ref)  # in C, one that the garbage collector need not look at: it leads nowhere
