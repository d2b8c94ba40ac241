"""Strided views of any kind, and the bytes that they cover."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

SIZE = 64  # elements of the storage


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """Slices, transposes, steps, expanded and self-overlapping dimensions."""
    dims = draw(st.integers(0, 3))
    shape = [draw(st.integers(0 if d == 0 else 1, 4)) for d in range(dims)]
    strides = [draw(st.sampled_from([0, 1, 2, 3, 4, 7, 12])) for _ in range(dims)]
    reach = sum(max(n - 1, 0) * s for n, s in zip(shape, strides, strict=True))
    offset = draw(st.integers(0, SIZE - 1 - reach)) if reach < SIZE else 0
    base = draw(st.sampled_from(["float64", "float32", "int16", "complex128"]))
    storage = torch.zeros(SIZE * 2, dtype=torch.float64)
    dtype = getattr(torch, base)
    flat = (
        storage.view(dtype) if dtype is not torch.complex128 else torch.view_as_complex(storage.view(-1, 2))
    )
    if reach >= flat.numel() or offset + reach >= flat.numel():
        shape, strides, offset = [], [], 0
    return flat.as_strided(shape, strides, offset)


def bytes_of(t: torch.Tensor) -> set[int]:
    item = t.element_size()
    places = {t.storage_offset()}
    for n, stride in zip(t.shape, t.stride(), strict=True):
        places = {p + k * stride for p in places for k in range(n)}
    return {p * item + b for p in places for b in range(item)}
