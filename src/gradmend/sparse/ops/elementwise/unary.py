"""Elementwise functions of one tensor: those that keep zero work on the values, the others say so."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradmend.sparse.dispatch import Op, implements
from gradmend.sparse.errors import SparseError, dense_result
from gradmend.sparse.helpers.dims import flag, no_more
from gradmend.sparse.tensor import SparseTensor

# f(0) = 0, whatever the other arguments are.
KEEPS_ZERO = (
    *("neg", "negative", "positive", "abs", "absolute", "sqrt", "square", "sign", "sgn", "floor", "ceil"),
    *("round", "trunc", "fix", "frac", "sin", "tan", "asin", "arcsin", "atan", "arctan", "sinh", "tanh"),
    *("asinh", "arcsinh", "atanh", "arctanh", "expm1", "log1p", "erf", "erfinv", "rad2deg"),
    *("deg2rad", "relu", "isnan", "isinf", "isposinf", "isneginf", "signbit", "conj", "conj_physical"),
    *("resolve_conj", "resolve_neg", "real", "imag", "angle", "i1", "i1e"),
)
KEEPS_ZERO_NN = (
    *("leaky_relu", "gelu", "elu", "selu", "celu", "silu", "mish", "hardswish", "softsign", "tanhshrink"),
    *("softshrink", "hardshrink", "relu6", "rrelu", "dropout"),
)
# f(0) is another number: the result has it everywhere.
DENSE_AT_ZERO = {
    "exp": "exp(0) = 1",
    "exp2": "exp2(0) = 1",
    "cos": "cos(0) = 1",
    "cosh": "cosh(0) = 1",
    "acos": "acos(0) = pi / 2",
    "sigmoid": "sigmoid(0) = 1 / 2",
    "expit": "sigmoid(0) = 1 / 2",
    "logit": "logit(0) = -inf",
    "log": "log(0) = -inf",
    "log2": "log2(0) = -inf",
    "log10": "log10(0) = -inf",
    "rsqrt": "rsqrt(0) = inf",
    "reciprocal": "1 / 0 = inf",
    "softplus": "softplus(0) = log 2",
    "logsigmoid": "logsigmoid(0) = -log 2",
    "hardsigmoid": "hardsigmoid(0) = 1 / 2",
    "erfc": "erfc(0) = 1",
    "lgamma": "lgamma(0) = inf",
    "digamma": "digamma(0) = -inf",
    "sinc": "sinc(0) = 1",
    "i0": "i0(0) = 1",
    "isfinite": "isfinite(0) is True",
    "isreal": "isreal(0) is True",
    "logical_not": "not 0 is True",
    "bitwise_not": "~0 = -1",
    "ones_like": "ones everywhere",
    "full_like": "one number everywhere",
    "rand_like": "random numbers everywhere",
    "randn_like": "random numbers everywhere",
    "alpha_dropout": "dropped entries become a negative number",
}


def _on_values(name: str, f: Any) -> Op:
    at = _place_of_inplace(f)

    def op(S: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
        no_more(name, {"out": kwargs.pop("out", None)})
        flag("inplace", kwargs.pop("inplace", False))
        if at is not None and len(args) > at:  # given by its place: the user's values are never written to
            flag("inplace", args[at])
            args = (*args[:at], False, *args[at + 1 :])
        return S.like(f(S._values, *args, **kwargs))

    op.__name__ = name
    op.__doc__ = f"{name} of the stored entries: {name}(0) = 0, so the pattern stays."
    return op


def _place_of_inplace(f: Any) -> int | None:
    try:
        names = list(inspect.signature(f).parameters)
    except (TypeError, ValueError):  # a builtin: those take no `inplace`
        return None
    return names.index("inplace") - 1 if "inplace" in names else None


def _dense(name: str, why: str) -> Op:
    def op(S: SparseTensor, *args: Any, **kwargs: Any) -> Any:
        raise dense_result(name, why)

    op.__name__ = name
    return op


for _name in KEEPS_ZERO:
    if hasattr(torch, _name) or hasattr(torch.special, _name):
        # S.real and S.imag are attributes, as torch has them.
        own = _name not in ("real", "imag")
        implements(_name, method=own)(
            _on_values(_name, getattr(torch, _name, None) or getattr(torch.special, _name))
        )
for _name in KEEPS_ZERO_NN:
    implements(_name)(_on_values(_name, getattr(F, _name)))
for _name, _why in DENSE_AT_ZERO.items():
    implements(_name)(_dense(_name, _why))
implements("__neg__", also=(torch.Tensor.__neg__,))(_on_values("neg", torch.neg))
implements("__abs__", also=(torch.Tensor.__abs__,))(_on_values("abs", torch.abs))
implements("__pos__", also=(torch.Tensor.__pos__,))(_on_values("positive", torch.positive))
implements("__invert__", also=(torch.Tensor.__invert__,))(_dense("~", "~False is True"))


@implements("clamp", "clip")
def clamp(S: SparseTensor, min: Any = None, max: Any = None) -> SparseTensor:
    for name, bound, good in (("min", min, lambda b: b <= 0), ("max", max, lambda b: b >= 0)):
        if isinstance(bound, Tensor | SparseTensor):
            raise dense_result("clamp", f"the tensor {name} may not leave zero as it is")
        if bound is not None and not good(bound):
            raise dense_result("clamp", f"zero is outside {name}={bound}")
    return S.like(torch.clamp(S._values, min, max))


@implements("clamp_min")
def clamp_min(S: SparseTensor, min: Any) -> SparseTensor:
    return clamp(S, min=min)


@implements("clamp_max")
def clamp_max(S: SparseTensor, max: Any) -> SparseTensor:
    return clamp(S, max=max)


@implements("hardtanh")
def hardtanh(
    S: SparseTensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> SparseTensor:
    if min_val is None or max_val is None:
        raise SparseError("hardtanh takes two numbers.")
    flag("inplace", inplace)
    if not (S.is_floating_point() or S.is_complex()):
        # As torch's, which keeps whole numbers whole; its clamp does not.
        min_val, max_val = (
            int(n) if isinstance(n, float) and math.isfinite(n) else n for n in (min_val, max_val)
        )
        return clamp(S, min_val, max_val)
    clamp(S, min_val, max_val)  # what it refuses; its gradient is 1 at the bounds, and hardtanh's is 0
    return S.like(F.hardtanh(S._values, min_val, max_val))


@implements("threshold")
def threshold(S: SparseTensor, threshold: float, value: float, inplace: bool = False) -> SparseTensor:
    flag("inplace", inplace)
    if threshold >= 0 and value != 0:
        raise dense_result("threshold", f"zero becomes {value}")
    return S.like(F.threshold(S._values, threshold, value))


@implements("nan_to_num")
def nan_to_num(
    S: SparseTensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> SparseTensor:
    return S.like(torch.nan_to_num(S._values, nan, posinf, neginf))


@implements("zeros_like")
def zeros_like(
    S: SparseTensor,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **more: Any,
) -> SparseTensor:
    """The same pattern, all values zero."""
    more.pop("memory_format", None)
    no_more("zeros_like", more)
    values = torch.zeros_like(S._values, dtype=dtype, device=device, requires_grad=requires_grad)
    return S.like(values)


@implements("empty_like")
def empty_like(
    S: SparseTensor,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **more: Any,
) -> SparseTensor:
    """The same pattern with any values: what `module.to_empty()` makes of a buffer."""
    more.pop("memory_format", None)
    no_more("empty_like", more)
    values = torch.empty_like(S._values, dtype=dtype, device=device, requires_grad=requires_grad)
    return S.like(values)
