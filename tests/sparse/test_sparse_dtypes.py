"""Every dtype: floats against float64, complex with its own calculus, integers and booleans by value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from gradmend.sparse import Pattern, SparseError, SparseTensor

P = Pattern.random((7, 5), density=0.4, generator=torch.Generator().manual_seed(0))
G = torch.Generator().manual_seed(1)
V, X, Y = (torch.randn(s, dtype=torch.float64, generator=G) for s in ((P.nnz,), (5, 3), (2, 7)))

OPS: dict[str, Callable[[SparseTensor, Tensor, Tensor], Any]] = {
    "S @ X": lambda S, X, Y: S @ X,
    "Y @ S": lambda S, X, Y: Y @ S,
    "sum": lambda S, X, Y: S.sum(0),
    "mean": lambda S, X, Y: S.mean(1),
    "amax": lambda S, X, Y: S.amax(1),
    "softmax": lambda S, X, Y: S.softmax(1).values(),
    "logsumexp": lambda S, X, Y: S.logsumexp(0),
    "norm": lambda S, X, Y: S.norm(),
    "S * row": lambda S, X, Y: (S * X[:, 0]).values(),
    "S @ S.t()": lambda S, X, Y: (S @ S.t()).to_dense(),
    "sampled": lambda S, X, Y: torch.sparse.sampled_addmm(S, Y.t(), X[:, :2].t()).values(),
    "S + S": lambda S, X, Y: (S + S.t().t()).values(),
    "max message": lambda S, X, Y: S.propagate(X, "max"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPS)
def test_low_precision_follows_float64(name: str, dtype: torch.dtype) -> None:
    tol = {torch.float32: 1e-4, torch.bfloat16: 6e-2, torch.float16: 8e-3}[dtype]
    low = [t.to(dtype).requires_grad_() for t in (V, X, Y)]
    high = [t.detach().double().requires_grad_() for t in low]
    got = OPS[name](SparseTensor(P, low[0]), *low[1:])
    want = OPS[name](SparseTensor(P, high[0]), *high[1:])
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, rtol=tol, atol=tol)
    weight = torch.linspace(-1, 1, want.numel(), dtype=torch.float64).view(want.shape)
    ours = torch.autograd.grad(got, low, weight.to(dtype), allow_unused=True)
    theirs = torch.autograd.grad(want, high, weight, allow_unused=True)
    for g, h in zip(ours, theirs, strict=True):
        if h is not None:
            assert g.dtype == dtype
            torch.testing.assert_close(g.double(), h, rtol=2 * tol, atol=2 * tol)


def test_sums_in_bf16_are_not_lost() -> None:
    # 1 + 1 + ... stops at 256 when it is added up in bfloat16 itself.
    S = SparseTensor(Pattern.random((2, 4000), density=1.0), torch.ones(8000, dtype=torch.bfloat16))
    assert S.sum(1).tolist() == [4000, 4000]
    assert (S @ torch.ones(4000, dtype=torch.bfloat16)).tolist() == [4000, 4000]


COMPLEX = {n: f for n, f in OPS.items() if n not in ("amax", "softmax", "logsumexp", "max message")}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_gradients(name: str) -> None:
    g = torch.Generator().manual_seed(2)
    shapes = ((P.nnz,), (5, 3), (2, 7))
    args = [torch.randn(s, dtype=torch.complex128, generator=g, requires_grad=True) for s in shapes]
    f = lambda v, X, Y: COMPLEX[name](SparseTensor(P, v), X, Y)  # noqa: E731
    probe = torch.autograd.grad(torch.view_as_real(f(*args) + 0j).sum(), args, allow_unused=True)
    for a, used in zip(args, probe, strict=True):
        a.requires_grad_(used is not None)
    assert gradcheck(f, args)
    assert gradgradcheck(f, args)


def test_complex_parts_and_adjoints() -> None:
    v = torch.randn(P.nnz, dtype=torch.complex64)
    S = SparseTensor(P, v)
    D = S.to_dense()
    assert torch.equal(S.H.to_dense(), D.mH) and torch.equal(S.conj().to_dense(), D.conj())
    assert torch.equal(S.real.to_dense(), D.real) and torch.equal(torch.imag(S).to_dense(), D.imag)
    torch.testing.assert_close(S.H @ D, D.mH @ D)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
def test_whole_numbers(dtype: torch.dtype) -> None:
    v = torch.arange(P.nnz) % 3 - (0 if dtype == torch.bool else 1)
    S = SparseTensor(P, v.to(dtype))
    D = S.to_dense()
    assert torch.equal(S.sum(0), D.sum(0)) and S.sum().dtype == torch.int64
    assert torch.equal(S.any(1), D.any(1)) and torch.equal(S.all(1), D.all(1))
    assert torch.equal((S != 0).to_dense(), D != 0)
    if dtype != torch.bool:
        x = torch.arange(5).to(dtype)
        assert torch.equal(S @ x, (D.long() @ x.long()).to(dtype))
        assert torch.equal(S.amax(1), D.amax(1)) and torch.equal(S.amin(0), D.amin(0))
        assert torch.equal(S.prod(1), D.prod(1))
        with pytest.raises(SparseError, match=r"convert with S\.float\(\)"):
            S.mean()
    else:
        assert torch.equal((S & S).to_dense(), D) and torch.equal(
            (S | S.map(torch.logical_not)).to_dense(),
            D | (SparseTensor(P, torch.ones(P.nnz, dtype=torch.bool)).to_dense()),
        )


def test_duplicates_of_booleans_are_joined() -> None:
    S = SparseTensor.from_coo([[0, 0, 1], [0, 0, 1]], torch.tensor([True, False, False]), (2, 2))
    assert S.to_dense().tolist() == [[True, False], [False, False]]


def test_mixed_dtypes_are_refused_in_one_sentence() -> None:
    with pytest.raises(
        SparseError, match=r"^the sparse values are torch\.float32 and the dense operand is torch\.f"
    ):
        SparseTensor(P, V.float()) @ X


@pytest.mark.parametrize("bounds", [(-1.5,), (-1.5, 1.5), (-2, 1)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_hardtanh_keeps_whole_numbers_whole(bounds: tuple[float, ...], dtype: torch.dtype) -> None:
    D = torch.tensor([[-3, 0, 2, -1]], dtype=dtype)
    torch.testing.assert_close(
        torch.nn.functional.hardtanh(SparseTensor.from_dense(D), *bounds).to_dense(),
        torch.nn.functional.hardtanh(D, *bounds),
    )
