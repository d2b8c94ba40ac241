"""Convolutions between sparse feature maps; weights have the names and shapes of torch's dense layers."""

from __future__ import annotations

import functools
import math
import operator
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from gradmend.sparse.errors import ArgumentError, SparseError
from gradmend.sparse.nn.maps import kernel_map
from gradmend.sparse.nn.maps.convolve import convolve
from gradmend.sparse.nn.maps.feature_map import SparseFeatureMap
from gradmend.sparse.nn.maps.kernel_map import Sizes, Window
from gradmend.sparse.pattern import Pattern

Size = int | tuple[int, ...]


def many(name: str, x: Size, dims: int, low: int) -> Sizes:
    """A number for each dimension."""
    try:
        made = tuple(operator.index(n) for n in (x if isinstance(x, Iterable) else (x,) * dims))
    except TypeError:
        made = ()
    if len(made) != dims or any(n < low for n in made):
        more = f", or {dims} of them" if dims > 1 else ""
        raise SparseError(f"{name} is a whole number of at least {low}{more}, not {x!r}.")
    return made


class _Conv(nn.Module):
    dims = 0
    turned = False  # torch's transposed layers have (in, out, ...) for a weight

    def __init_subclass__(cls, **options: Any) -> None:
        """Python names a function in its errors: a public layer's is named after the layer."""
        super().__init_subclass__(**options)
        if cls.dims and "__init__" not in vars(cls):
            inherited: Any = cls.__init__
            own = types.FunctionType(
                inherited.__code__,
                inherited.__globals__,
                "__init__",
                inherited.__defaults__,
                inherited.__closure__,
            )
            functools.update_wrapper(own, inherited).__qualname__ = f"{cls.__qualname__}.__init__"
            own.__kwdefaults__ = inherited.__kwdefaults__
            cls.__init__ = own  # type: ignore[method-assign]

    def __init__(
        self, channels: tuple[int, int], window: Window, bias: bool, device: Any, dtype: Any
    ) -> None:
        super().__init__()
        (self.in_channels,) = many("in_channels", channels[0], 1, 0)
        (self.out_channels,) = many("out_channels", channels[1], 1, 0)
        self.window = window
        first, second = reversed(channels) if not self.turned else channels
        self.weight = nn.Parameter(torch.empty(first, second, *window.size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(self.out_channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch's convolutions."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(max(self.weight[0].numel(), 1))
            nn.init.uniform_(self.bias, -bound, bound)

    def _matrices(self) -> Tensor:
        """[offsets, in, out]."""
        flat = self.weight.flatten(2).movedim(2, 0)
        return flat if self.turned else flat.transpose(1, 2)

    def _check(self, x: SparseFeatureMap) -> None:
        if not isinstance(x, SparseFeatureMap):
            raise SparseError(f"{type(self).__name__} takes a SparseFeatureMap, not {type(x).__name__}.")
        if len(x.space) != self.dims or x.channels != self.in_channels:
            raise SparseError(
                f"{type(self).__name__} takes {self.in_channels} channels in {self.dims} dimensions, not {x.channels} "
                f"in {len(x.space)}."
            )
        if x.features.device != self.weight.device:
            raise SparseError(f"features are on {x.features.device}, and the weight on {self.weight.device}.")

    def _made(self, x: SparseFeatureMap, out: Pattern, km: kernel_map.KernelMap) -> SparseFeatureMap:
        made = convolve(x.features, self._matrices(), km)
        return SparseFeatureMap(out, made if self.bias is None else made + self.bias.to(made.dtype))

    def extra_repr(self) -> str:
        w = self.window
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={w.size}, stride={w.stride}, padding={w.padding}, "
            f"dilation={w.dilation}, bias={self.bias is not None}"
        )


class _Submanifold(_Conv):
    """A convolution whose outputs are at the places of its inputs: maps stay as sparse as they were.

    What torch's dense layer with the same weight and padding gives, at those places.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size = 3,
        dilation: Size = 1,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **others: Any,
    ) -> None:
        size, name = many("kernel_size", kernel_size, self.dims, 1), type(self).__name__
        if any(n % 2 == 0 for n in size):
            raise SparseError(f"{name} has odd kernel sizes, not {size}: its windows have a middle.")
        apart = many("dilation", dilation, self.dims, 1)
        padding = tuple(n // 2 * d for n, d in zip(size, apart, strict=True))
        if others:
            raise ArgumentError(
                f"{name} takes no {next(iter(others))}: its outputs are at the places of its inputs, as of a dense layer "
                f"with stride 1 and padding {padding}. Leave it out, or use {name.replace('Submanifold', 'Strided')}."
            )
        window = Window(size, (1,) * self.dims, padding, apart)
        super().__init__((in_channels, out_channels), window, bias, device, dtype)

    def forward(self, x: SparseFeatureMap) -> SparseFeatureMap:
        self._check(x)
        return self._made(x, x.pattern, kernel_map.submanifold(x.pattern, self.window))


class _Strided(_Conv):
    """A convolution with outputs wherever a window holds an input: torch's dense layer, at the places it can reach."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size = 2,
        stride: Size = 2,
        padding: Size = 0,
        dilation: Size = 1,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        window = Window(
            many("kernel_size", kernel_size, self.dims, 1),
            many("stride", stride, self.dims, 1),
            many("padding", padding, self.dims, 0),
            many("dilation", dilation, self.dims, 1),
        )
        super().__init__((in_channels, out_channels), window, bias, device, dtype)

    def forward(self, x: SparseFeatureMap) -> SparseFeatureMap:
        self._check(x)
        return self._made(x, *kernel_map.strided(x.pattern, self.window))


class _Transposed(_Conv):
    """The transpose of a strided convolution: to the places given with `like`, or to all that inputs reach."""

    turned = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size = 2,
        stride: Size = 2,
        padding: Size = 0,
        output_padding: Size = 0,
        dilation: Size = 1,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        window = Window(
            many("kernel_size", kernel_size, self.dims, 1),
            many("stride", stride, self.dims, 1),
            many("padding", padding, self.dims, 0),
            many("dilation", dilation, self.dims, 1),
        )
        self.output_padding = many("output_padding", output_padding, self.dims, 0)
        super().__init__((in_channels, out_channels), window, bias, device, dtype)

    def forward(self, x: SparseFeatureMap, like: SparseFeatureMap | None = None) -> SparseFeatureMap:
        self._check(x)
        if like is not None and not isinstance(like, SparseFeatureMap):
            raise SparseError(f"like is a SparseFeatureMap, not {type(like).__name__}.")
        places = None if like is None else like.pattern
        return self._made(x, *kernel_map.transposed(x.pattern, self.window, self.output_padding, places))


class SubmanifoldConv2d(_Submanifold):
    __doc__ = _Submanifold.__doc__
    dims = 2


class SubmanifoldConv3d(_Submanifold):
    __doc__ = _Submanifold.__doc__
    dims = 3


class StridedConv2d(_Strided):
    __doc__ = _Strided.__doc__
    dims = 2


class StridedConv3d(_Strided):
    __doc__ = _Strided.__doc__
    dims = 3


class TransposedConv2d(_Transposed):
    __doc__ = _Transposed.__doc__
    dims = 2


class TransposedConv3d(_Transposed):
    __doc__ = _Transposed.__doc__
    dims = 3
