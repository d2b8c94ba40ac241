"""The gate before every compiled kernel: what it will read and write is looked at here, once, and nowhere else.

A kernel takes addresses. `address` is the only place that hands one out, and it does so after it has seen that the
tensor is plain CPU memory of the dtype and shape that the kernel was told, and that its storage really is that long.
Indices are followed blindly, so they come from a validated pattern (`size` says for how many rows), or `csr`,
`pointers` and `places` read them all first.
"""

from __future__ import annotations

import os
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from gradmend.sparse.errors import PatternError, SparseError
from gradmend.sparse.kernels import team


def address(t: Tensor, shape: tuple[int, ...], dtype: torch.dtype, stride: int | None = None) -> int:
    """Where t begins. `stride`: from row to row, of a matrix whose rows are contiguous; 0 of one row for all."""
    if t.dtype is not dtype or not t.is_cpu or t.layout is not torch.strided or t.is_neg() or t.is_conj():
        _refuse(t, shape, dtype)
    if stride is None:
        if tuple(t.shape) != shape or not t.is_contiguous():
            _refuse(t, shape, dtype)
        last = t.numel()
    else:
        rows = 1 if stride == 0 else shape[0]
        if t.dim() != 2 or tuple(t.shape) != (rows, shape[1]) or (t.stride(1) != 1 and shape[1] > 1):
            _refuse(t, shape, dtype)
        if rows > 1 and t.stride(0) != stride:
            _refuse(t, shape, dtype)
        last = (rows - 1) * stride + shape[1] if rows and shape[1] else 0
    if last and (t.storage_offset() + last) * t.element_size() > t.untyped_storage().nbytes():
        raise SparseError(
            f"a tensor of the shape {tuple(t.shape)} lies in memory that was freed or made smaller "
            f"({t.untyped_storage().nbytes()} bytes): it can't be read."
        )
    return t.data_ptr()


def _refuse(t: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> NoReturn:
    raise SparseError(
        f"a kernel expects {dtype} of the shape {shape} on the CPU, and was given {t.dtype} of the shape "
        f"{tuple(t.shape)} on {t.device}."
    )


def operand(name: str, t: Tensor, *shape: int | None) -> None:
    """A shape, None where any number will do."""
    if len(t.shape) == len(shape):  # written out, because a small product waits for it
        for n, m in zip(shape, t.shape, strict=True):
            if n is not None and n != m:
                break
        else:
            return
    wanted = ", ".join("any" if n is None else str(n) for n in shape)
    raise SparseError(f"{name} has the shape {tuple(t.shape)}, and ({wanted}) is needed.")


_looking = os.environ.get("GRADMEND_CHECK_IDS", "0") not in ("", "0")


def check_ids(on: bool = True) -> None:
    """Checks ids of look-ups on a device before they are used; the host waits for each. On the CPU they always are.

    Without it the device itself refuses ids outside of the table, at a later line and by its own words.
    """
    global _looking
    _looking = bool(on)


def looked_at(t: Tensor) -> bool:
    """Whether the numbers of t are checked: reading those of a device makes the host wait."""
    return t.is_cpu or _looking


def same_device(*tensors: Tensor) -> None:
    first = tensors[0].device
    for t in tensors:
        if t.device != first:
            devices = ", ".join(str(t.device) for t in tensors)
            raise SparseError(f"operands are on {devices}: move them to one with .to(device).")


def pointers(crow: Tensor, total: int) -> None:
    """[rows + 1]: from 0 to `total`, never falling."""
    if crow.dim() != 1 or crow.shape[0] == 0 or crow.is_floating_point():
        raise PatternError(f"row pointers are one vector of whole numbers, not {tuple(crow.shape)}.")
    if int(crow[0]) != 0 or int(crow[-1]) != total or bool((crow.diff() < 0).any()):
        raise PatternError(f"row pointers go from 0 to the {total} entries and never fall.")


def places(name: str, index: Tensor, count: int, bound: int) -> None:
    """[count]: numbers from 0 to bound - 1."""
    if index.dim() != 1 or index.shape[0] != count or index.is_floating_point():
        raise PatternError(
            f"{name} are {count} whole numbers, not a tensor of the shape {tuple(index.shape)}."
        )
    if count:
        low, high = (int(n) for n in index.aminmax())
        if low < 0 or high >= bound:
            raise PatternError(f"{name} go from {low} to {high}, and must be from 0 to {bound - 1}.")


def csr(crow: Tensor, col: Tensor, cols: int, perm: Tensor | None = None) -> None:
    """A whole pattern, entry by entry."""
    nnz = col.shape[0] if col.dim() == 1 else -1
    with team.torch_alone():
        pointers(crow, nnz)
        places("columns", col, nnz, cols)
        if perm is not None:
            places("the permutation", perm, nnz, nnz)


_MOST = 256
_checked: dict[Any, Any] = {}  # memory of indices -> versions, and the memory itself, weakly


def seen(crow: Tensor, col: Tensor, cols: int, perm: Tensor | None = None) -> tuple[int, int]:
    """The size of a pattern that a compiled graph hands over, checked when it first does.

    Every call brings the same memory, under other tensors (AOTAutograd detaches views that backward keeps). A pattern
    keeps its memory to itself: it changes in no other way than one that versions count. On a device torch's own
    operations follow indices, and check them there.
    """
    size = (crow.shape[0] - 1, cols)
    if not col.is_cpu:
        return size
    given = [t for t in (crow, col, perm) if t is not None]
    if any(t.dim() != 1 for t in given):
        csr(crow, col, cols, perm)
    key = (cols, *[(t.data_ptr(), t.shape[0], t.stride(0), t.dtype) for t in given])
    now = [(t._version, StorageWeakRef(t.untyped_storage())) for t in given]
    kept = _checked.get(key)
    if kept is not None and kept == now and not any(memory.expired() for _, memory in kept):
        return size
    csr(crow, col, cols, perm)
    if len(_checked) >= _MOST:
        _checked.clear()
    _checked[key] = now
    return size
