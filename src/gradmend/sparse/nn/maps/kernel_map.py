"""Which input place meets which output place under each offset of a kernel: found once for a pattern, then kept."""

from __future__ import annotations

import itertools
import math
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.errors import INT64_MAX, PatternError, SparseError
from gradmend.sparse.kernels import convolve
from gradmend.sparse.kernels.grouping import grouped
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.places import check_size, linear, unlinear

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
            if n + 2 * p > INT64_MAX:
                raise SparseError(f"a padded map of {n + 2 * p} places in a row can't be numbered by int64.")
            made.append(room // s + 1)
        return tuple(made)

    def in_space(self, space: Sizes, more: Sizes) -> Sizes:
        """What a transposed convolution makes of a space; `more` is torch's output_padding."""
        made = []
        parts = zip(space, self.size, self.stride, self.padding, self.dilation, more, strict=True)
        for n, k, s, p, d, e in parts:
            whole = (n - 1) * s + d * (k - 1) + e + 1
            if n and whole <= 2 * p:
                raise SparseError(f"a padding of {p} leaves nothing of a map of {whole} places in a row.")
            if whole > INT64_MAX:
                raise SparseError(f"a map of {whole} places in a row can't be numbered by int64.")
            made.append(max(whole - 2 * p, 0))
        return tuple(made)


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
        if places is None:
            out = _spread(pattern, window, (pattern.size[0], *window.in_space(pattern.size[1:], more)))
        else:
            out = places.canonical()
        kept = found[key] = (out, between(out, pattern, window).turned())
    made: tuple[Pattern, KernelMap] = kept
    return made


def between(inputs: Pattern, outputs: Pattern, window: Window) -> KernelMap:
    """All pairs. Numbered in a grid with room around it, places that differ by an offset differ by one number."""
    device = inputs.device
    extent = [inputs.size[0]]
    for d in range(len(window.size)):
        last = (outputs.size[1 + d] - 1) * window.stride[d] + (window.size[d] - 1) * window.dilation[d]
        extent.append(max(inputs.size[1 + d] + window.padding[d], last + 1))
    size = tuple(extent)
    if math.prod(max(n, 1) for n in size) > INT64_MAX:
        return _between_far(inputs, outputs, window)
    stride, padding = (torch.tensor(t, device=device)[:, None] for t in (window.stride, window.padding))
    reach = window.offsets().to(device) * torch.tensor(window.dilation, device=device)
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


def _between_far(inputs: Pattern, outputs: Pattern, window: Window) -> KernelMap:
    """All pairs, where the grid with room around it has more places than int64 has numbers: each offset is looked up in
    the grid of the inputs, which has not."""
    keys, device = inputs.keys(), inputs.device
    stride = torch.tensor(window.stride, device=device)[:, None]
    limit = torch.tensor(inputs.size[1:], device=device)[:, None]
    first, lengths = outputs._indices[1:] * stride, [0]
    sources, targets = [keys[:0]], [keys[:0]]
    for offset in window.offsets().tolist():
        # Python's numbers first: a shift that leads out of the map may be too large for a tensor.
        shift = [o * d - p for o, d, p in zip(offset, window.dilation, window.padding, strict=True)]
        spans = zip(shift, inputs.size[1:], outputs.size[1:], window.stride, strict=True)
        if any(s >= n or s < -(m - 1) * t for s, n, m, t in spans):
            lengths.append(0)
            continue
        at = first + torch.tensor(shift, device=device)[:, None]
        inside = ((at >= 0) & (at < limit)).all(0).nonzero().squeeze(1)
        wanted = linear(torch.cat([outputs._indices[:1], at])[:, inside], inputs.size)
        found = torch.searchsorted(keys, wanted).clamp_(max=max(keys.shape[0] - 1, 0))
        hit = (keys[found] == wanted).nonzero().squeeze(1) if keys.shape[0] else found[:0]
        sources.append(found[hit])
        targets.append(inside[hit])
        lengths.append(hit.shape[0])
    ptr = torch.tensor(lengths, device=device).cumsum(0)
    return KernelMap(ptr, torch.cat(sources), torch.cat(targets), inputs.nnz, outputs.nnz)


def _reached(pattern: Pattern, window: Window) -> Pattern:
    size = (pattern.size[0], *window.out_space(pattern.size[1:]))
    check_size("the map that a convolution makes", size)
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
    check_size("the map that a transposed convolution makes", size)
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
    return Pattern.sorted(unlinear(grouped(keys, max(math.prod(size), 1), known=True).rows, size), size)
