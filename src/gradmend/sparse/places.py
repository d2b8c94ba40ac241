"""Places as numbers: row-major keys, row pointers, and the checks that indices and sizes must pass."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradmend.sparse.errors import INT64_MAX, PatternError, too_large

Size = tuple[int, ...]

SPARE = 1024  # rows that may be empty without anyone minding


def is_wide(n: int, nnz: int) -> bool:
    """So many rows for so few entries that a number per row is more than all the entries: work on the occupied."""
    return n > 4 * nnz + SPARE


def linear(indices: Tensor, size: Size) -> Tensor:
    """[dims, n] -> [n], row-major numbers."""
    key = indices[0]
    for axis, n in zip(indices[1:], size[1:], strict=True):
        key = key * n + axis
    return key


def unlinear(keys: Tensor, size: Size) -> Tensor:
    axes = []
    for n in reversed(size[1:]):
        axes.append(keys % n)
        keys = keys // n
    return torch.stack([keys, *reversed(axes)])


def order_of(keys: Tensor) -> Tensor:
    """argsort, not stable. On the CPU numpy's takes a quarter of torch's time (2.13)."""
    if keys.device.type == "cpu" and not torch.compiler.is_compiling():
        return torch.from_numpy(np.argsort(keys.numpy()))
    return torch.argsort(keys)


def pointers(sorted_index: Tensor, n: int) -> Tensor:
    """[n + 1]: where each of n rows starts."""
    return torch._convert_indices_from_coo_to_csr(sorted_index, n)


@contextmanager
def aside() -> Iterator[None]:
    """What a pattern keeps outlives the transform or the inference mode it is first used in."""
    if torch.compiler.is_compiling():
        yield
        return
    with torch._C._DisableFuncTorch(), torch.inference_mode(False):
        yield


def bare(index: Tensor) -> Tensor:
    """Places computed inside torch.func.grad come wrapped; they don't depend on what is differentiated."""
    if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
        return index
    while torch._C._functorch.is_gradtrackingtensor(index):
        index = torch._C._functorch.get_unwrapped(index)
    if torch._C._functorch.is_batchedtensor(index):
        raise PatternError("the places of a sparse tensor can't differ from sample to sample of a vmap.")
    return index


def check_size(name: str, size: Size) -> None:
    if math.prod(size) > INT64_MAX or any(n > INT64_MAX for n in size):
        raise too_large(name, size)


def as_indices(indices: Any, size: Sequence[int] | None) -> Tensor:
    """int64 [dims, n], a copy that nobody else holds."""
    if not isinstance(indices, Tensor):
        try:
            indices = torch.as_tensor(indices, device=home())
        except (ValueError, TypeError, RuntimeError) as error:
            raise PatternError(f"indices can't be read as a tensor: {error}") from error
        if indices.numel() == 0 and not indices.dtype.is_complex:
            indices = indices.long()
    if indices.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        raise PatternError(
            f"indices must be whole numbers (int64), not {indices.dtype}: convert them with .long()."
        )
    if indices.dim() == 3:
        raise PatternError(
            f"indices have the shape {tuple(indices.shape)}; one pattern is (dimensions, entries). For a batch "
            f"that shares its places, give them once and let values be (batch, entries) with batch_dims=1; for "
            f"places that differ, make the batch a first row of the indices, or use gradmend.sparse.block_diag."
        )
    if indices.dim() == 1 and indices.numel() == 0 and size is not None:
        indices = indices.reshape(len(size), 0)
    if indices.dim() != 2 or indices.shape[0] == 0:
        raise PatternError(
            f"indices have the shape {tuple(indices.shape)}; they must be (dimensions, entries), one row per "
            f"dimension, as torch.sparse_coo_tensor takes them."
        )
    if indices.layout is not torch.strided or indices.is_meta:
        raise PatternError(
            f"indices must be an ordinary tensor with numbers, not {indices.layout} on {indices.device}."
        )
    return bare(indices.detach()).to(torch.int64, copy=True, memory_format=torch.contiguous_format)


def home() -> torch.device:
    """Where places are made: torch's default device, but never "meta", where there are no numbers."""
    found = torch.get_default_device()
    return torch.device("cpu") if found.type == "meta" else found


def as_size(indices: Tensor, size: Sequence[int] | None) -> Size:
    if size is None:
        if indices.shape[1] == 0:
            raise PatternError("a pattern without entries needs its size: Pattern(indices, size).")
        found = tuple(int(n) + 1 for n in indices.amax(1).clamp(max=INT64_MAX - 1))
        check_size("a sparse tensor", tuple(max(n, 0) for n in found))
        return found
    try:
        shape = tuple(operator.index(n) for n in size)
    except TypeError as error:
        raise PatternError(f"a size is a sequence of whole numbers, not {size!r}.") from error
    if len(shape) != indices.shape[0]:
        raise PatternError(
            f"indices name {indices.shape[0]} dimensions and the size {shape} has {len(shape)}: "
            f"they must agree."
        )
    if any(n < 0 for n in shape):
        raise PatternError(f"the size {shape} has a negative dimension.")
    check_size("a sparse tensor", shape)
    return shape


def check_bounds(indices: Tensor, size: Size) -> None:
    if indices.shape[1] == 0:
        return
    limit = torch.tensor(size, device=indices.device)[:, None]
    bad = (indices < 0) | (indices >= limit)
    if bool(bad.any()):
        dim, entry = (int(n) for n in bad.nonzero()[0])
        raise PatternError(
            f"entry {entry} has the index {int(indices[dim, entry])} in dimension {dim}, "
            f"which goes from 0 to {size[dim] - 1}."
        )
