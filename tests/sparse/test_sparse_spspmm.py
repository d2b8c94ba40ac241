"""Sparse @ sparse in one piece and in many: the same product, gradients on the patterns."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from gradmend.sparse import Pattern, SparseError, SparseTensor
from gradmend.sparse.autograd import contract
from gradmend.sparse.kernels import gustavson, team

G = torch.Generator().manual_seed(0)
P = Pattern.random((4, 5), density=0.4, generator=G)
Q = Pattern.random((5, 3), density=0.4, generator=G)


@pytest.mark.parametrize(
    ("chunk", "dtype"), [(1 << 21, torch.complex128), (7, torch.float64), (1, torch.float64)]
)
def test_in_pieces_of_any_size(chunk: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "_CHUNK", chunk)
    p, q = Pattern(P.indices(), P.size), Pattern(Q.indices(), Q.size)
    a = torch.randn(P.nnz, dtype=dtype, generator=G, requires_grad=True)
    b = torch.randn(Q.nnz, dtype=dtype, generator=G, requires_grad=True)

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (SparseTensor(p, a) @ SparseTensor(q, b)).to_dense()

    torch.testing.assert_close(f(a, b), SparseTensor(P, a).to_dense() @ SparseTensor(Q, b).to_dense())
    assert gradcheck(f, (a, b), check_forward_ad=True) and gradgradcheck(f, (a, b))


def test_the_plan_is_kept_and_leaves_no_cycle() -> None:
    p = Pattern.random((9, 9), density=0.3)
    S = SparseTensor(p, torch.randn(p.nnz))
    assert (S @ S).pattern is (S @ S).pattern
    # Another operand, another plan.
    T = SparseTensor(Pattern.random((9, 4), density=0.5), torch.ones(18))
    torch.testing.assert_close((S @ T).to_dense(), S.to_dense() @ T.to_dense())
    S @ S
    seen = weakref.ref(p)
    gc.disable()
    try:
        del S, p
        assert seen() is None
    finally:
        gc.enable()


def test_vectors_batches_and_nothing() -> None:
    S = SparseTensor(P, torch.randn(P.nnz))
    row, col = S[0], S[:, 1]
    torch.testing.assert_close((S @ row).to_dense(), S.to_dense() @ row.to_dense())
    torch.testing.assert_close((col @ S).to_dense(), col.to_dense() @ S.to_dense())
    torch.testing.assert_close(row @ row, row.to_dense() @ row.to_dense())
    batch = SparseTensor(P, torch.randn(3, P.nnz), batch_dims=1)
    right = SparseTensor(Q, torch.randn(Q.nnz))
    torch.testing.assert_close((batch @ right).to_dense(), batch.to_dense() @ right.to_dense())
    empty = SparseTensor(Pattern(torch.zeros(2, 0, dtype=torch.int64), (5, 3)), torch.zeros(0))
    assert (S @ empty).nnz == 0 and (S @ empty).shape == (4, 3)
    with pytest.raises(SparseError, match=r"shapes \(4, 5\) and \(4, 5\) can't be multiplied"):
        S @ S


def test_low_precision_is_added_in_float32() -> None:
    n = 3000
    wide = SparseTensor(Pattern.random((1, n), density=1.0), torch.ones(n, dtype=torch.bfloat16))
    # 3000 itself is no bfloat16; added up in bfloat16 the sum would stop at 256.
    assert (wide @ wide.t()).to_dense().item() == torch.tensor(3000.0).bfloat16().item()


compiled = pytest.mark.skipif(not gustavson.available(), reason="numba is missing or switched off")


@compiled
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_compiled_to_the_second_derivative(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gustavson, "SMALL", 0)
    p, q = Pattern(P.indices(), P.size), Pattern(Q.indices(), Q.size)
    a = torch.randn(P.nnz, dtype=dtype, generator=G, requires_grad=True)
    b = torch.randn(Q.nnz, dtype=dtype, generator=G, requires_grad=True)

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (SparseTensor(p, a) @ SparseTensor(q, b)).to_dense()

    assert contract.plan_for(p, q).product is not None
    assert gradcheck(f, (a, b), check_forward_ad=True) and gradgradcheck(f, (a, b))


@compiled
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.complex64, torch.bfloat16, torch.int64]
)
def test_both_roads_agree(dtype: torch.dtype, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short rows, long rows, empty rows, columns beyond one word of words; in parts and in one piece."""
    monkeypatch.setattr(team, "ALONE", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    thin = Pattern.random((300, 200), nnz=2_000, generator=G)
    crowded = Pattern(torch.stack([torch.full((150,), 7), torch.arange(150)]), (300, 200))
    p = (thin | crowded) - Pattern(torch.stack([torch.full((200,), 9), torch.arange(200)]), (300, 200))
    q = Pattern.random((200, 9_000), nnz=20_000, generator=G)
    kind = torch.float32 if dtype in (torch.int64, torch.bfloat16) else dtype
    va = (3 * torch.randn(p.nnz, dtype=kind, generator=G)).to(dtype)
    vb = (3 * torch.randn(q.nnz, dtype=kind, generator=G)).to(dtype)

    def run() -> list[torch.Tensor]:
        left, right = Pattern(p.indices(), p.size), Pattern(q.indices(), q.size)
        if not dtype.is_floating_point and not dtype.is_complex:
            C = SparseTensor(left, va) @ SparseTensor(right, vb)
            return [C.indices(), C.values()]
        a, b = va.clone().requires_grad_(), vb.clone().requires_grad_()
        C = SparseTensor(left, a) @ SparseTensor(right, b)
        w = torch.linspace(-1, 1, C.nnz).to(dtype)
        both = torch.autograd.grad(C.values(), (a, b), w, retain_graph=True)
        alone = [torch.autograd.grad(C.values(), x, w, retain_graph=True)[0] for x in (a, b)]
        assert (contract.plan_for(left, right).product is not None) is (gustavson.SMALL == 0)
        return [C.indices(), C.values(), *both, *alone]

    monkeypatch.setattr(gustavson, "SMALL", 0)
    fast = run()
    monkeypatch.setattr(gustavson, "SMALL", 1 << 62)
    for x, y in zip(fast, run(), strict=True):
        torch.testing.assert_close(x, y)


@compiled
def test_few_entries_in_a_huge_shape_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is as long as the rows or columns: the accumulator counts the columns that occur."""
    monkeypatch.setattr(gustavson, "SMALL", 0)
    n = 10_000_000
    row, mid, col = (torch.randint(n, (400,), generator=G) for _ in range(3))
    p, q = Pattern(torch.stack([row, mid]), (n, n)), Pattern(torch.stack([mid.flip(0), col]), (n, n))
    S, T = SparseTensor(p, torch.randn(400)), SparseTensor(q, torch.randn(400))
    C = S @ T
    product = contract.plan_for(S.pattern, T.pattern).product
    assert product is not None and product.pairs[5] <= 400 and product.ptr.shape[0] <= 401
    want = {
        (int(r), int(c))
        for r, m in zip(row, mid, strict=True)
        for k, c in zip(mid.flip(0), col, strict=True)
        if m == k
    }
    assert {tuple(x) for x in C.indices().t().tolist()} == want
