"""The plainest oracle: every tensor saved for backward is copied when it is saved.

It keeps no ledger and knows no writes, so it shares no mistake with healing; it pays with memory.
On the way it counts the saves that were changed: what PyTorch would refuse, and what it would not notice.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from gradmend.capture.graph import nodes, reads


class Copies:
    def __init__(self) -> None:
        self.refused = 0
        self.silent = 0

    def pack(self, tensor: torch.Tensor) -> Any:
        with torch.no_grad():
            seen = tensor.detach()
            try:
                leaf = weakref.ref(tensor) if tensor.is_leaf else None
                return seen.clone(), seen, seen._version, leaf
            except RuntimeError:  # a tensor that only stands for one
                return tensor, None, 0, None

    def unpack(self, kept: Any) -> torch.Tensor:
        copy, seen, version, leaf = kept
        if seen is not None:
            if seen._version != version:
                self.refused += 1
            elif (not _same(seen, copy) or _swapped(seen, leaf)) and _is_read(kept, seen):
                self.silent += 1
        return copy

    def hooks(self) -> Any:
        return torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)


def _is_read(kept: Any, seen: torch.Tensor) -> bool:
    """BatchNorm keeps its running statistics, moves them, and in training never reads them."""
    node = nodes.current()
    return node is None or reads.is_read(node, reads.slot_of(node, kept), seen.device.type)


def _swapped(seen: torch.Tensor, leaf: Any) -> bool:
    """`p.data = ...` gives a saved leaf other memory, and no counter moves."""
    now = leaf() if leaf is not None else None
    return now is not None and now.layout == torch.strided and now.data_ptr() != seen.data_ptr()


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    with torch.no_grad():
        if a.shape != b.shape or a.layout != torch.strided:
            return a.shape == b.shape
        alike = a == b
        if a.is_floating_point() or a.is_complex():
            alike = alike | ((a != a) & (b != b))
        return bool(alike.all())
