"""Comparisons and choices: sparse where they are false, or choose zero, at unstored places."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.dispatch import Op, implements
from gradmend.sparse.errors import ArgumentError, SparseError, dense_result
from gradmend.sparse.helpers.gather import at_entries, is_number
from gradmend.sparse.ops.elementwise.binary import add, align, on_union
from gradmend.sparse.setops import find
from gradmend.sparse.tensor import SparseTensor


def _comparison(name: str, f: Any, at_zero: Any) -> Op:
    def op(a: Any, b: Any) -> Any:
        if not (is_number(b) or isinstance(b, Tensor | SparseTensor)):
            raise ArgumentError(f"S {name} x takes a number or a sparse tensor, not {type(b).__name__}.")
        if isinstance(a, SparseTensor) and isinstance(b, SparseTensor):
            if at_zero(0, 0):
                raise dense_result(f"S {name} S", f"0 {name} 0 is True")
            return on_union(f, a, b)
        if not isinstance(a, SparseTensor):
            raise dense_result(f"X {name} S", "a dense operand is compared with every zero")
        if isinstance(b, Tensor):
            raise dense_result(f"S {name} X", "a dense operand is compared with every zero")
        if at_zero(0, b):
            raise dense_result(f"S {name} {b}", f"0 {name} {b} is True")
        return a.like(f(a._values, b))

    return op


def _operator(compare: Op) -> Op:
    """As Python's operator: None and words are nobody's equals."""

    def op(a: Any, b: Any) -> Any:
        return compare(a, b) if is_number(b) or isinstance(b, Tensor | SparseTensor) else NotImplemented

    return op


for _name, _sign, _f, _at in (
    ("ne", "!=", torch.ne, operator.ne),
    ("eq", "==", torch.eq, operator.eq),
    ("gt", ">", torch.gt, operator.gt),
    ("lt", "<", torch.lt, operator.lt),
    ("ge", ">=", torch.ge, operator.ge),
    ("le", "<=", torch.le, operator.le),
):
    _dunder, _op = f"__{_name}__", _comparison(_sign, _f, _at)
    implements(_name)(_op)
    implements(_dunder, also=(getattr(torch.Tensor, _dunder),))(_operator(_op))


@implements("where", also=(torch.Tensor.where,))
def chosen(S: Any, condition: Any, other: Any) -> Any:
    """The method: S where the condition holds, else other."""
    return where(condition, S, other)


@implements(also=(torch.where,))
def where(condition: Any, a: Any = None, b: Any = None) -> Any:
    """Three arguments: a where the condition holds, else b. One: the places of the true (non-zero) entries."""
    if a is None and b is None:
        return nonzero(condition, as_tuple=True)
    _boolean("where takes a boolean condition", condition)
    if is_number(b) and not isinstance(b, Tensor) and b == 0:
        return _where_true(condition, a)
    if not isinstance(b, SparseTensor):
        if isinstance(condition, Tensor) and isinstance(b, Tensor) and isinstance(a, SparseTensor):
            # Choosing from a dense b: b with the chosen entries of a put in, and zero where a has none.
            return add(_where_true(condition, a), torch.where(condition, torch.zeros_like(b), b))
        raise dense_result("where", "every unstored place takes the second choice")
    rest = _where_false(condition, b)
    if is_number(a) and not isinstance(a, Tensor) and a == 0:
        return rest
    return add(_where_true(condition, a), rest)


def _boolean(what: str, condition: Any) -> None:
    if getattr(condition, "dtype", None) is not torch.bool:
        got = getattr(condition, "dtype", type(condition).__name__)
        raise SparseError(f"{what}, such as S != 0, not {got}.")


def _where_true(condition: Any, a: Any) -> SparseTensor:
    """a where the condition holds, zero elsewhere."""
    if isinstance(condition, SparseTensor):
        if isinstance(a, SparseTensor):
            holds = _look_up(condition, a)
            return a.like(torch.where(holds, a._values, torch.zeros_like(a._values)))
        chosen = a if is_number(a) else at_entries(condition, a)
        kind = chosen.dtype if isinstance(chosen, Tensor) else torch.get_default_dtype()
        zero = torch.zeros((), dtype=kind, device=condition.device)
        return condition.like(torch.where(condition._values, torch.as_tensor(chosen, dtype=kind), zero))
    if isinstance(a, SparseTensor):
        return a.like(torch.where(at_entries(a, condition), a._values, torch.zeros_like(a._values)))
    raise dense_result("where", "a dense condition chooses a number everywhere")


def _where_false(condition: Any, b: SparseTensor) -> SparseTensor:
    holds = _look_up(condition, b) if isinstance(condition, SparseTensor) else at_entries(b, condition)
    return b.like(torch.where(holds, torch.zeros_like(b._values), b._values))


def _look_up(condition: SparseTensor, S: SparseTensor) -> Tensor:
    """The condition at the entries of S: false where it stores nothing."""
    condition, S = align(condition, S)
    if condition._pattern == S._pattern:
        return condition._values.bool()
    n = S.batch_dims
    there, at = find(condition._pattern, S._pattern._keys())
    if condition.nnz == 0:
        return torch.zeros_like(S._values, dtype=torch.bool)
    there = there.view(*[1] * n, -1, *[1] * S.dense_dim())
    return condition._values.bool().index_select(n, at) & there


@implements("masked_fill")
def masked_fill(S: SparseTensor, mask: Any, value: Any) -> SparseTensor:
    _boolean("masked_fill takes a boolean mask", mask)
    if isinstance(value, Tensor) or value != 0:
        if isinstance(mask, SparseTensor):
            filled = where(mask, value, 0)
            return add(_where_false(mask, S), filled.to(S.dtype))
        raise dense_result("masked_fill", "the mask may name places that aren't stored")
    return _where_false(mask, S)


@implements("nonzero")
def nonzero(S: SparseTensor, *, as_tuple: bool = False) -> Any:
    values = S._values
    if S.batch_dims or S.dense_dim():
        S = S.sparsify()
        values = S._values
    index = S._pattern._indices[:, values.detach() != 0]
    return tuple(index) if as_tuple else index.t()


@implements("count_nonzero")
def count_nonzero(S: SparseTensor, dim: Any = None) -> Tensor:
    return (S != 0).sum(dim)


@implements("equal", method=True)
def equal(a: Any, b: Any) -> bool:
    """Same shape and the same numbers, wherever they are stored."""
    for x in (a, b):
        if not isinstance(x, SparseTensor | Tensor):
            raise ArgumentError(f"equal takes tensors, not {type(x).__name__}.")
    if a.shape != b.shape:
        return False
    a, b = (x if isinstance(x, SparseTensor) else SparseTensor.from_dense(x) for x in (a, b))
    return not bool((a != b)._values.any())


@implements("allclose")
def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    if not isinstance(b, SparseTensor):
        b = SparseTensor.from_dense(b)
    if not isinstance(a, SparseTensor):
        a = SparseTensor.from_dense(a)
    close = on_union(lambda x, y: ~torch.isclose(x, y, rtol, atol, equal_nan), a, b)
    return not bool(close._values.any())
