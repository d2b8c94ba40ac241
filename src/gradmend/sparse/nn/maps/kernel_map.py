"""Which input place meets which output place under each offset of a kernel: found once for a pattern, then kept."""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.errors import PatternError, SparseError
from gradmend.sparse.kernels import convolve
from gradmend.sparse.kernels.grouping import grouped
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.places import linear, unlinear

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """The shape of a kernel. Input = output * stride - padding + offset * dilation, in each dimension."""

    size: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes

    def offsets(self) -> Tensor:
        """[offsets, dimensions], in the order of a dense kernel's elements."""
        return torch.tensor(list(itertools.product(*(range(n) for n in self.size))), dtype=torch.int64).view(
            -1, len(self.size)
        )

    def out_space(self, space: Sizes) -> Sizes:
        made = []
        for n, k, s, p, d in zip(space, self.size, self.stride, self.padding, self.dilation, strict=True):
            if (room := n + 2 * p - d * (k - 1) - 1) < 0:
                raise SparseError(
                    f"a window of {d * (k - 1) + 1} is larger than a padded map of {n + 2 * p}."
                )
            made.append(room // s + 1)
        return tuple(made)

    def in_space(self, space: Sizes, more: Sizes) -> Sizes:
        """What a transposed convolution makes of a space; `more` is torch's output_padding."""
        parts = zip(space, self.size, self.stride, self.padding, self.dilation, more, strict=True)
        return tuple((n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, p, d, e in parts)


@dataclass(frozen=True, eq=False)
class KernelMap:
    """The pairs of offset k are ptr[k]:ptr[k + 1]; rows of `source` and of `target` ascend within each."""

    ptr: Tensor
    source: Tensor
    target: Tensor
    inputs: int
    outputs: int
    _turned: list[KernelMap] = field(default_factory=list, repr=False)

    def turned(self) -> KernelMap:
        """From outputs to inputs."""
        if not self._turned:
            self._turned.append(KernelMap(self.ptr, self.target, self.source, self.outputs, self.inputs))
        return self._turned[0]


_kept: weakref.WeakKeyDictionary[Pattern, dict[Any, Any]] = weakref.WeakKeyDictionary()


def _cache(pattern: Pattern) -> dict[Any, Any]:
    return _kept.setdefault(pattern, {})


def submanifold(pattern: Pattern, window: Window) -> KernelMap:
    """Outputs at the inputs' places."""
    found = _cache(pattern)
    key = ("same", window)
    if key not in found:
        found[key] = between(pattern, pattern, window)
    made: KernelMap = found[key]
    return made


def strided(pattern: Pattern, window: Window) -> tuple[Pattern, KernelMap]:
    """Outputs at every place whose window holds an input."""
    found = _cache(pattern)
    key = ("strided", window)
    if key not in found:
        out = _reached(pattern, window)
        found[key] = (out, between(pattern, out, window))
    made: tuple[Pattern, KernelMap] = found[key]
    return made


def transposed(
    pattern: Pattern, window: Window, more: Sizes, places: Pattern | None
) -> tuple[Pattern, KernelMap]:
    """Outputs at given places, or at every place that an input reaches."""
    space = window.in_space(pattern.size[1:], more)
    if places is not None:
        if places.size[0] != pattern.size[0] or len(places.size) != len(pattern.size):
            raise PatternError(f"places of {places.size} can't be those of a map of {pattern.size}.")
        if window.out_space(places.size[1:]) != pattern.size[1:]:
            raise PatternError(
                f"a map of {pattern.size[1:]} does not come from places of {places.size[1:]} by a window of "
                f"{window.size} with stride {window.stride}."
            )
    found = _cache(pattern)
    key = ("transposed", window, more, None if places is None else id(places))
    kept = found.get(key)
    if kept is None or (places is not None and kept[0] is not places):
        out = _spread(pattern, window, (pattern.size[0], *space)) if places is None else places.canonical()
        kept = found[key] = (out, between(out, pattern, window).turned())
    made: tuple[Pattern, KernelMap] = kept
    return made


def between(inputs: Pattern, outputs: Pattern, window: Window) -> KernelMap:
    """All pairs. Numbered in a grid with room around it, places that differ by an offset differ by one number."""
    device = inputs.device
    stride, padding = (torch.tensor(t, device=device)[:, None] for t in (window.stride, window.padding))
    reach = window.offsets().to(device) * torch.tensor(window.dilation, device=device)
    extent = [inputs.size[0]]
    for d in range(len(window.size)):
        last = (outputs.size[1 + d] - 1) * window.stride[d] + (window.size[d] - 1) * window.dilation[d]
        extent.append(max(inputs.size[1 + d] + window.padding[d], last + 1))
    size = tuple(extent)
    here, there = inputs._indices.clone(), outputs._indices.clone()
    here[1:] += padding
    there[1:] *= stride
    steps = torch.zeros(reach.shape[0], 1 + reach.shape[1], dtype=torch.int64, device=device)
    steps[:, 1:] = reach
    middle = tuple(n // 2 * d for n, d in zip(window.size, window.dilation, strict=True))
    same = inputs is outputs and window.padding == middle and set(window.stride) == {1}
    mirrored = same and all(n % 2 for n in window.size)
    keys, base = linear(here, size), linear(there, size)
    ptr, source, target = convolve.pairs(keys, base, linear(steps.t(), size), mirrored)
    return KernelMap(ptr, source, target, inputs.nnz, outputs.nnz)


def _reached(pattern: Pattern, window: Window) -> Pattern:
    size = (pattern.size[0], *window.out_space(pattern.size[1:]))
    stride, padding, dilation = _columns(window, pattern.device)
    place = pattern._indices[1:] + padding
    limit = torch.tensor(size[1:], device=pattern.device)[:, None]
    keys = []
    for offset in window.offsets().to(pattern.device):
        at = place - offset[:, None] * dilation
        out = torch.div(at, stride, rounding_mode="floor")
        good = ((at >= 0) & (out * stride == at) & (out < limit)).all(0)
        keys.append(linear(torch.cat([pattern._indices[:1], out])[:, good], size))
    return _pattern(torch.cat(keys), size)


def _spread(pattern: Pattern, window: Window, size: Sizes) -> Pattern:
    stride, padding, dilation = _columns(window, pattern.device)
    base = pattern._indices[1:] * stride - padding
    limit = torch.tensor(size[1:], device=pattern.device)[:, None]
    keys = []
    for offset in window.offsets().to(pattern.device):
        at = base + offset[:, None] * dilation
        good = ((at >= 0) & (at < limit)).all(0)
        keys.append(linear(torch.cat([pattern._indices[:1], at])[:, good], size))
    return _pattern(torch.cat(keys), size)


def _columns(window: Window, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    stride, padding, dilation = (
        torch.tensor(t, device=device)[:, None] for t in (window.stride, window.padding, window.dilation)
    )
    return stride, padding, dilation


def _pattern(keys: Tensor, size: Sizes) -> Pattern:
    bound = 1
    for n in size:
        bound *= n
    return Pattern.sorted(unlinear(grouped(keys, max(bound, 1), known=True).rows, size), size)
