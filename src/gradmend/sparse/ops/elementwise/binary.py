"""Elementwise functions of two tensors: sparse with sparse, with dense, with numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.autograd.place import in_place_is_fine
from gradmend.sparse.dispatch import Op, implements
from gradmend.sparse.errors import SparseError, dense_result
from gradmend.sparse.helpers.gather import add_to_dense, at_entries, is_number
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.setops import intersection, union
from gradmend.sparse.tensor import SparseTensor

_plus = torch.add


@implements("add", "__add__", "__radd__", also=(torch.Tensor.__add__, torch.Tensor.__radd__))
def add(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    if isinstance(a, SparseTensor) and isinstance(b, SparseTensor):
        return on_union(_plus, a, b if alpha == 1 else b.like(b._values * alpha))
    if alpha != 1:
        b = mul(b, alpha) if isinstance(b, SparseTensor) else b * alpha
    S, other = (a, b) if isinstance(a, SparseTensor) else (b, a)
    if is_number(other):
        if not isinstance(other, Tensor) and other == 0:
            return S
        raise dense_result("S + x", "every zero becomes x")
    if not isinstance(other, Tensor):
        raise SparseError(
            f"a sparse tensor is combined with tensors and numbers, not with {type(other).__name__}."
        )
    if tuple(other.shape) != tuple(S.shape):
        raise dense_result("S + X", f"X of the shape {tuple(other.shape)} is added to every row or column")
    return add_to_dense(S, other)


@implements("sub", "subtract", "__sub__", also=(torch.Tensor.__sub__,))
def sub(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    if any(getattr(x, "dtype", None) is torch.bool for x in (a, b)):
        raise SparseError(
            "booleans can't be subtracted: use ^ or logical_xor, or convert one with .to(dtype)."
        )
    if is_number(a) and not (not isinstance(a, Tensor) and a == 0):
        raise dense_result("x - S", "every zero becomes x")
    if is_number(a):
        return neg(b)
    return add(a, neg(b) if isinstance(b, SparseTensor | Tensor) else -b, alpha=alpha)


@implements("rsub", "__rsub__", also=(torch.Tensor.__rsub__,))
def rsub(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    return sub(b, a, alpha=alpha)


def neg(x: Any) -> Any:
    return x.like(-x._values) if isinstance(x, SparseTensor) else -x


@implements("mul", "multiply", "__mul__", "__rmul__", also=(torch.Tensor.__mul__, torch.Tensor.__rmul__))
def mul(a: Any, b: Any) -> SparseTensor:
    if isinstance(a, SparseTensor) and isinstance(b, SparseTensor):
        return on_intersection(torch.mul, a, b)
    S, other = (a, b) if isinstance(a, SparseTensor) else (b, a)
    return S.like(S._values * (other if is_number(other) else at_entries(S, other)))


@implements("div", "divide", "true_divide", "__truediv__", "__div__", also=(torch.Tensor.__truediv__,))
def div(a: Any, b: Any, *, rounding_mode: str | None = None) -> SparseTensor:
    if isinstance(b, SparseTensor):
        raise dense_result("x / S", "division by the zeros that aren't stored gives inf or nan")
    return a.like(torch.div(a._values, b if is_number(b) else at_entries(a, b), rounding_mode=rounding_mode))


@implements("__rdiv__", "__rtruediv__", also=(torch.Tensor.__rdiv__, torch.Tensor.__rtruediv__))
def rdiv(a: Any, b: Any) -> SparseTensor:
    return div(b, a)


def _modulo(name: str, f: Any) -> Op:
    def op(a: Any, b: Any) -> SparseTensor:
        if isinstance(b, SparseTensor):
            raise dense_result(name, "division by the zeros that aren't stored is not defined")
        return a.like(f(a._values, b if is_number(b) else at_entries(a, b)))

    return op


for _name, _f in (("floor_divide", torch.floor_divide), ("remainder", torch.remainder), ("fmod", torch.fmod)):
    implements(_name)(_modulo(_name, _f))
for _name, _f in (("__floordiv__", torch.floor_divide), ("__mod__", torch.remainder)):
    implements(_name, also=(getattr(torch.Tensor, _name),))(_modulo(_name, _f))


def _reversed(op: Op) -> Op:
    return lambda a, b: op(b, a)


for _name, _f in (("__rfloordiv__", torch.floor_divide), ("__rmod__", torch.remainder)):
    implements(_name)(_reversed(_modulo(_name, _f)))


@implements("pow", "__pow__", also=(torch.Tensor.__pow__, torch.Tensor.pow))
def pow(a: Any, b: Any) -> SparseTensor:
    if isinstance(b, SparseTensor):
        raise dense_result("x ** S", "x ** 0 = 1")
    if isinstance(b, Tensor):
        if b.is_complex():
            raise dense_result("S ** x", "0 ** x of a complex x is not a number or 1")
        if (
            not torch.compiler.is_compiling()
            and not torch._C._are_functorch_transforms_active()
            and bool((b <= 0).any())
        ):
            raise dense_result("S ** x", "0 ** x is 1 or inf where x is not positive")
        return a.like(a._values ** (b if b.dim() == 0 else at_entries(a, b)))
    if b == 0:
        raise dense_result("S ** 0", "0 ** 0 = 1")
    if not isinstance(b, complex) and b < 0:
        raise dense_result(f"S ** {b}", f"0 ** {b} = inf")
    return a.like(a._values**b)


@implements("__rpow__", also=(torch.Tensor.__rpow__,))
def rpow(a: Any, b: Any) -> SparseTensor:
    return pow(b, a)


def on_union(f: Any, a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """f(a, b) where either is stored, for f(0, 0) = 0."""
    a, b = align(a, b)
    if a._pattern == b._pattern:
        return a.like(f(a._values, b._values))
    pattern, left, right = union(a._pattern, b._pattern)
    if f is _plus and a.dtype == b.dtype and a.dtype != torch.bool and in_place_is_fine():
        return a.like(spread(a, left, pattern).index_add_(a.batch_dims, right, b._values), pattern)
    return a.like(f(spread(a, left, pattern), spread(b, right, pattern)), pattern)


def on_intersection(f: Any, a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """f(a, b) where both are stored, for f(0, x) = f(x, 0) = 0."""
    a, b = align(a, b)
    if a._pattern == b._pattern:
        return a.like(f(a._values, b._values))
    pattern, left, right = intersection(a._pattern, b._pattern)
    n = a.batch_dims
    return a.like(f(a._values.index_select(n, left), b._values.index_select(n, right)), pattern)


def spread(S: SparseTensor, slots: Tensor, pattern: Pattern) -> Tensor:
    """S's values at their slots of a larger pattern, zero elsewhere."""
    values, n = S._values, S.batch_dims
    zeros = values.new_zeros((*values.shape[:n], pattern.nnz, *values.shape[n + 1 :]))
    return zeros.index_copy_(n, slots, values) if in_place_is_fine() else zeros.index_copy(n, slots, values)


def align(a: SparseTensor, b: SparseTensor) -> tuple[SparseTensor, SparseTensor]:
    """As many batch dimensions in both; the sparse ones must agree."""
    if a._pattern.size != b._pattern.size or a.dense_dim() != b.dense_dim():
        raise SparseError(
            f"sparse tensors of the shapes {tuple(a.shape)} and {tuple(b.shape)} can't be combined entry by "
            f"entry: shapes must be equal (a dense operand may broadcast)."
        )
    n = max(a.batch_dims, b.batch_dims)
    return _lead(a, n), _lead(b, n)


def _lead(S: SparseTensor, n: int) -> SparseTensor:
    more = n - S.batch_dims
    return S if more == 0 else S.like(S._values[(None,) * more], batch_dims=n)


def _union_op(f: Any) -> Op:
    def op(a: Any, b: Any) -> SparseTensor:
        if isinstance(a, SparseTensor) and isinstance(b, SparseTensor):
            return on_union(f, a, b)
        raise dense_result(f.__name__, "the other operand has numbers where S has none")

    return op


_g: Any
for _g in (
    *(torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.hypot, torch.atan2, torch.logical_or),
    *(torch.logical_xor, torch.bitwise_or, torch.bitwise_xor),
):
    implements(_g.__name__)(_union_op(_g))
implements("__or__", also=(torch.Tensor.__or__,))(_union_op(torch.bitwise_or))
implements("__xor__", also=(torch.Tensor.__xor__,))(_union_op(torch.bitwise_xor))


def _and_op(f: Any) -> Op:
    def op(a: Any, b: Any) -> SparseTensor:
        if isinstance(a, SparseTensor) and isinstance(b, SparseTensor):
            return on_intersection(f, a, b)
        S, other = (a, b) if isinstance(a, SparseTensor) else (b, a)
        return S.like(f(S._values, other if is_number(other) else at_entries(S, other)))

    return op


implements("logical_and")(_and_op(torch.logical_and))
implements("bitwise_and", "__and__", also=(torch.Tensor.__and__,))(_and_op(torch.bitwise_and))
