"""nn.Conv2d with a sparse weight, on dense images."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.utils import _pair

from gradmend.sparse.errors import ArgumentError, PatternError, SparseError
from gradmend.sparse.nn import patterns
from gradmend.sparse.nn.linear import chosen
from gradmend.sparse.nn.weight import SparseWeight
from gradmend.sparse.pattern import Pattern

Pair = int | tuple[int, int]


class SparseConv2d(nn.Module):
    """nn.Conv2d with a sparse weight: a pattern of (out, in / groups * height * width), random at `density`.

    The windows that some weight reads are laid out once (zero padding only), and multiplied by the sparse weight.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair | str = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        density: float = 0.1,
        *,
        pattern: Pattern | None = None,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise SparseError(f"{groups} groups don't divide {in_channels} and {out_channels} channels.")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride = _two("kernel_size", kernel_size, 1), _two("stride", stride, 1)
        self.padding = padding if isinstance(padding, str) else _two("padding", padding, 0)
        self.dilation = _two("dilation", dilation, 1)
        self._sides = self._around()
        size = (out_channels, in_channels // groups * math.prod(self.kernel_size))
        if pattern is None:
            pattern = patterns.random(size, density, generator=generator)
        if pattern.size != size:
            raise PatternError(
                f"the pattern is {pattern.size}; a weight is (out, in * height * width) = {size}."
            )
        pattern = pattern.canonical() if device is None else pattern.to(device).canonical()
        values = torch.empty(pattern.nnz, device=device, dtype=dtype)
        self.weight = SparseWeight(pattern, patterns.uniform(pattern, values, generator))
        if bias:
            bound = 1 / math.sqrt(max(pattern.nnz / max(out_channels, 1), 1.0))
            start = torch.empty(out_channels, device=device, dtype=dtype)
            self.bias: nn.Parameter | None = nn.Parameter(start.uniform_(-bound, bound, generator=generator))
        else:
            self.register_parameter("bias", None)

    @classmethod
    def from_dense(
        cls, layer: nn.Conv2d, mask: Tensor | Pattern | None = None, *, density: float | None = None
    ) -> SparseConv2d:
        """A pruned layer: its largest weights, those of a mask of their shape, or those that are not zero."""
        if layer.padding_mode != "zeros":
            raise SparseError(f"SparseConv2d pads with zeros, not {layer.padding_mode!r}.")
        weight = layer.weight.detach().flatten(1)
        if isinstance(mask, Tensor):
            mask = mask.flatten(1)
        pattern = chosen(layer, weight, mask, density, None, None)
        made = cls(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,  # type: ignore[arg-type]  # tuples of any length to a type checker
            layer.stride,  # type: ignore[arg-type]
            layer.padding,  # type: ignore[arg-type]
            layer.dilation,  # type: ignore[arg-type]
            layer.groups,
            layer.bias is not None,
            pattern=pattern,
            device=weight.device,
            dtype=weight.dtype,
        )
        with torch.no_grad():
            made.weight.values.copy_(weight[pattern.row, pattern.col])
            if made.bias is not None and layer.bias is not None:
                made.bias.copy_(layer.bias)
        return made

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() not in (3, 4) or x.shape[-3] != self.in_channels:
            raise SparseError(
                f"images are ([batch,] {self.in_channels}, height, width), not {tuple(x.shape)}."
            )
        if x.dim() == 3:
            return self.forward(x[None])[0]
        windows = self._windows(x)
        batch, height, width = windows.shape[3:]
        flat = windows.reshape(math.prod(windows.shape[:3]), batch * height * width)
        out = self._grouped(flat)
        if self.bias is not None:
            out = out + self.bias[:, None].to(out.dtype)
        return out.unflatten(1, (batch, height, width)).transpose(0, 1)

    def _grouped(self, flat: Tensor) -> Tensor:
        W = self.weight()
        if self.groups == 1:
            out: Tensor = W @ flat
            return out
        step = self.out_channels // self.groups
        parts = flat.chunk(self.groups)
        return torch.cat([W[i * step : (i + 1) * step] @ part for i, part in enumerate(parts)])

    def _windows(self, x: Tensor) -> Tensor:
        """[in, kernel height, kernel width, batch, height, width]: a view of the padded images."""
        (kh, kw), (sh, sw), (dh, dw) = self.kernel_size, self.stride, self.dilation
        x = F.pad(x, self._sides).transpose(0, 1)
        tall, wide = dh * (kh - 1) + 1, dw * (kw - 1) + 1
        if x.shape[2] < tall or x.shape[3] < wide:
            raise SparseError(
                f"windows of {tall} x {wide} are larger than padded images of {tuple(x.shape[2:])}."
            )
        seen = x.unfold(2, tall, sh).unfold(3, wide, sw)[..., ::dh, ::dw]
        return seen.permute(0, 4, 5, 1, 2, 3)

    def _around(self) -> list[int]:
        """How much is padded: left, right, above, below. What is odd of "same" goes right and below, as in torch."""
        if isinstance(self.padding, tuple):
            ph, pw = self.padding
            return [pw, pw, ph, ph]
        if self.padding not in ("same", "valid"):
            raise ArgumentError(f'padding is a number, a pair, "same" or "valid", not {self.padding!r}.')
        if self.padding == "valid":
            return [0] * 4
        if self.stride != (1, 1):
            raise ArgumentError(f'padding="same" takes a stride of 1, not {self.stride}.')
        spare = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        return [side for n in reversed(spare) for side in (n // 2, n - n // 2)]

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        )


def _two(name: str, x: Any, least: int) -> tuple[int, int]:
    found = _pair(x)
    try:
        height, width = (operator.index(n) for n in found)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{name} is a whole number or a pair of them, not {x!r}.") from error
    if min(height, width) < least:
        raise ArgumentError(f"{name} is at least {least}, not {x!r}.")
    return height, width
