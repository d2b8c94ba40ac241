"""The short roads for small operands: they must answer what the general ones do, and step aside when they must."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from gradmend.sparse import Pattern, SparseTensor
from gradmend.sparse.autograd import place
from gradmend.sparse.errors import SparseError
from gradmend.sparse.ops.products import quick

PLACES = [[0, 0, 1, 1, 3, 3, 3], [0, 2, 1, 4, 0, 1, 4]]  # row 2 and column 3 are empty
SIZE = (4, 5)


def matrix(values: Tensor | None = None) -> SparseTensor:
    pattern = Pattern(PLACES, SIZE).prepare()
    return SparseTensor(pattern, torch.arange(1.0, 8.0) if values is None else values)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


STARTS = {
    "finite": [1.0, -2.0, 3.0, 0.0, 5.0, 5.0, -7.0],
    "a stored -inf": [1.0, -math.inf, 3.0, 0.0, 5.0, 5.0, -7.0],
    "a row of -inf": [-math.inf, -math.inf, 3.0, 0.0, 5.0, 5.0, -7.0],
    "inf": [1.0, math.inf, 3.0, 0.0, 5.0, 5.0, -7.0],
    "nan": [1.0, 2.0, math.nan, 0.0, 5.0, 5.0, -7.0],
    "large": [1e30, 2e30, -1e30, 0.0, 5.0, 5.0, -7.0],
}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("dim", [0, 1, -1, -2])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_softmax_is_the_general_one(
    start: str, dim: int, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    S = matrix(torch.tensor(STARTS[start], dtype=dtype))
    small = getattr(torch, name)(S, dim)
    monkeypatch.setattr(place, "_SMALL", 0)
    general = getattr(torch, name)(S, dim)
    assert small.dtype == dtype and small.pattern is S.pattern
    torch.testing.assert_close(small.values(), general.values(), equal_nan=True)


def test_small_roads_in_deterministic_mode() -> None:
    """put_ refuses there (torch 2.13), and must not be asked."""
    S = matrix()
    whole, soft = S.to_dense(), torch.softmax(S, 1).values()
    with deterministic():
        torch.testing.assert_close(S.to_dense(), whole)
        torch.testing.assert_close(torch.softmax(S, 1).values(), soft)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_small_to_dense_of_every_kind(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.tensor([1, 2, 0, -1, 3, 4, 5]).to(dtype)
    if dtype.is_complex:
        values = (values * (1 + 2j)).conj()
    S = matrix(values)
    small = S.to_dense()
    monkeypatch.setattr(place, "_SMALL", 0)
    assert small.dtype == dtype and torch.equal(small, S.to_dense())
    assert small.is_contiguous() and not small.is_conj()


def test_small_to_dense_trains() -> None:
    v = torch.randn(7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda v: matrix(v).to_dense() ** 3, v)


def test_a_second_product_of_two_patterns_is_quick_and_the_same() -> None:
    a, b = matrix(), matrix(torch.randn(7)).t()
    first = a @ b
    again = a @ b
    assert again.pattern is first.pattern and torch.equal(again.values(), first.values())
    torch.testing.assert_close(again.to_dense(), a.to_dense() @ b.to_dense())
    other = SparseTensor(b.pattern, torch.randn(7))
    torch.testing.assert_close((a @ other).to_dense(), a.to_dense() @ other.to_dense())


def test_a_second_product_steps_aside() -> None:
    a, b = matrix(), matrix(torch.randn(7)).t()
    a @ b
    v = b.values().clone().requires_grad_()
    (a @ SparseTensor(b.pattern, v)).sum().backward()
    whole = b.to_dense().requires_grad_()
    (a.to_dense() @ whole).sum().backward()
    assert v.grad is not None and whole.grad is not None
    torch.testing.assert_close(v.grad, whole.grad[tuple(b.indices())])
    with pytest.raises(SparseError, match=r"float64"):
        a @ SparseTensor(b.pattern, v.detach().double())
    with torch.autocast("cpu", torch.bfloat16):
        assert (a @ b).dtype == torch.bfloat16
    batch = SparseTensor(b.pattern, torch.randn(3, 7), batch_dims=1)
    assert (a @ batch).shape == (3, 4, 4)
    with torch.autograd.forward_ad.dual_level():
        dual = SparseTensor(b.pattern, forward_ad.make_dual(b.values(), torch.ones(7)))
        assert forward_ad.unpack_dual((a @ dual).values()).tangent is not None
    mapped = torch.vmap(lambda w: (a @ SparseTensor(b.pattern, w)).to_dense())(torch.stack([b.values()] * 2))
    torch.testing.assert_close(mapped[1], a.to_dense() @ b.to_dense())


def test_values_that_were_resized_are_refused_by_a_second_product() -> None:
    v = torch.randn(7)
    a, b = matrix(v), matrix().t()
    a @ b
    v.resize_(3)
    with pytest.raises(SparseError, match="7 entries"):
        a @ b


@pytest.mark.parametrize("kind", ["tensor", "parameter"])
def test_a_product_with_a_graph_takes_the_short_road(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    short = quick.apply
    monkeypatch.setattr(quick, "apply", lambda *a: (taken.append(1), short(*a))[1])
    v = torch.randn(7, dtype=torch.float64, requires_grad=True)
    X = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    if kind == "parameter":
        X = torch.nn.Parameter(X.detach())
    assert torch.autograd.gradcheck(lambda v, X: matrix(v) @ X, (v, X))
    assert torch.autograd.gradgradcheck(lambda v, X: (matrix(v) @ X) ** 2, (v, X))
    assert taken
    with torch.autocast("cpu", torch.bfloat16):
        assert (matrix() @ X.detach().float().requires_grad_()).dtype == torch.bfloat16
    with pytest.raises(SparseError, match=r"float64"):
        matrix(v) @ X.float()
    with pytest.raises(SparseError, match="can't be multiplied"):
        matrix(v) @ X[:4]
    with torch.no_grad():
        assert not (matrix(v) @ X).requires_grad
    on_meta = SparseTensor(matrix().pattern, v.to("meta"))
    assert (on_meta @ X.to("meta")).shape == (4, 3)
