"""The compiled kernels equal their twins, and the twins equal dense algebra, in every dtype and odd shape."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradmend.sparse import Pattern, SparseTensor
from gradmend.sparse.kernels import gate, matmul, narrow, plain

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
COMPLEX = [torch.complex64, torch.complex128]
TOLERANCE = {
    torch.bfloat16: {"atol": 0.2, "rtol": 0.03},
    torch.float16: {"atol": 0.03, "rtol": 0.01},
    torch.float32: {"atol": 1e-4, "rtol": 1e-4},
}


def pattern(rows: int, cols: int, density: float, seed: int = 0) -> tuple[Tensor, ...]:
    """crow, col, crow_t, row_t, perm and the mask; some rows and columns are empty."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, cols, generator=g) < density
    mask[rows // 2] = False
    mask[:, cols // 3] = False
    row, col = mask.nonzero(as_tuple=True)
    perm = torch.argsort(col, stable=True)
    zero = torch.zeros(1, dtype=torch.int64)
    crow = torch.cat([zero, mask.sum(1).cumsum(0)])
    crow_t = torch.cat([zero, mask.sum(0).cumsum(0)])
    return crow, col, crow_t, row[perm], perm, mask


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, **TOLERANCE.get(want.dtype, {}))


@pytest.fixture(params=["compiled", "plain"])
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take one road whatever the size of the problem."""
    if request.param == "compiled":
        monkeypatch.setattr(matmul, "SMALL", 0)
    else:
        monkeypatch.setattr(matmul, "SMALL", float("inf"))
    return request.param


# Every width in one dtype, and a few in the others: each pair is four kernels to compile.
WIDTHS = [1, 3, 16, 33, 64, 128, 150, 256]
PAIRS = [(torch.float32, k) for k in WIDTHS] + [
    pytest.param(d, k, marks=pytest.mark.slow if k == 33 else ())
    for d in (*FLOATS[1:], *COMPLEX)
    for k in (1, 33, 150)
]


@pytest.mark.parametrize(("dtype", "k"), PAIRS, ids=str)
def test_products_equal_dense(road: str, dtype: torch.dtype, k: int) -> None:
    crow, col, crow_t, row_t, perm, mask = pattern(37, 29, 0.2)
    assert road == "plain" or dtype.is_complex or gate.plan(dtype, k) is not None
    v, X, G = (
        torch.randn(col.numel(), dtype=dtype),
        torch.randn(29, k, dtype=dtype),
        torch.randn(37, k, dtype=dtype),
    )
    exact = torch.complex128 if dtype.is_complex else torch.float64
    D = torch.zeros(37, 29, dtype=exact).masked_scatter_(mask, v.to(exact))
    Xe, Ge = X.to(exact), G.to(exact)

    close(matmul.spmm(crow, col, v, X), (D @ Xe).to(dtype))
    close(matmul.spmm(crow_t, row_t, v, G, perm), (D.T @ Ge).to(dtype))
    close(matmul.sddmm(crow, col, G, X), (Ge @ Xe.T)[mask].to(dtype))
    dv, dX = matmul.spmm_backward(crow, col, crow_t, row_t, perm, v, X, G)
    close(dv, (Ge @ Xe.mH)[mask].to(dtype))
    close(dX, (D.mH @ Ge).to(dtype))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_integers_multiply_too(dtype: torch.dtype) -> None:
    crow, col, _, _, _, mask = pattern(17, 13, 0.3)
    v, X = torch.randint(-9, 9, (col.numel(),), dtype=dtype), torch.randint(-9, 9, (13, 5), dtype=dtype)
    D = torch.zeros(17, 13, dtype=dtype).masked_scatter_(mask, v)
    assert torch.equal(matmul.spmm(crow, col, v, X), D @ X)
    assert torch.equal(matmul.sddmm(crow, col, D @ X, X), (D @ X @ X.T)[mask])


def test_no_entries_no_columns_no_rows(road: str) -> None:
    none, empty = torch.zeros(5, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    assert torch.equal(matmul.spmm(none, empty, torch.zeros(0), torch.ones(3, 2)), torch.zeros(4, 2))
    assert matmul.sddmm(none, empty, torch.ones(4, 2), torch.ones(3, 2)).shape == (0,)
    crow, col = torch.tensor([0, 1]), torch.tensor([2])
    assert matmul.spmm(crow, col, torch.ones(1), torch.ones(3, 0)).shape == (1, 0)
    assert torch.equal(matmul.sddmm(crow, col, torch.ones(1, 0), torch.ones(3, 0)), torch.zeros(1))
    assert matmul.spmm(none[:1], empty, torch.zeros(0), torch.ones(3, 2)).shape == (0, 2)


def test_any_strides(road: str) -> None:
    crow, col, crow_t, row_t, perm, mask = pattern(37, 29, 0.2)
    v = torch.randn(2 * col.numel())[::2]
    D = torch.zeros(37, 29).masked_scatter_(mask, v)
    wide = torch.randn(29, 40)
    turned = torch.randn(12, 29).t()
    negative = torch.view_as_complex(torch.randn(29, 12, 2)).conj().imag  # a view that negates when read
    assert negative.is_neg()
    for X in (
        wide[:, 3:15],
        turned,
        negative,
        torch.randn(1, 12).expand(29, 12),
        torch.randn(29, 1).expand(29, 12),
    ):
        for G in (torch.randn(12, 37).t(), torch.ones(()).expand(37, 12)):
            close(matmul.spmm(crow, col, v, X), D @ X)
            close(matmul.sddmm(crow, col, G, X), (G @ X.T)[mask])
            dv, dX = matmul.spmm_backward(crow, col, crow_t, row_t, perm, v, X, G)
            close(dv, (G @ X.T)[mask])
            close(dX, D.T @ G)


def test_any_index_tensors(road: str) -> None:
    """Views of a [nnz, 2] table have a stride, and CSR indices are often int32."""
    crow, col, crow_t, row_t, perm, mask = pattern(37, 29, 0.2)
    table = torch.stack([col, perm, row_t], 1).t()
    assert not table[0].is_contiguous()
    v, X, G = torch.randn(col.numel()), torch.randn(29, 16), torch.randn(37, 16)
    D = torch.zeros(37, 29).masked_scatter_(mask, v)
    close(matmul.spmm(crow, table[0], v, X), D @ X)
    close(matmul.spmm(crow_t, table[2], v, G, table[1]), D.T @ G)
    close(matmul.sddmm(crow, table[0], G, X), (G @ X.T)[mask])
    dv, dX = matmul.spmm_backward(crow, table[0], crow_t, table[2], table[1], v, X, G)
    close(dv, (G @ X.T)[mask])
    close(dX, D.T @ G)
    close(matmul.spmm(crow.int(), col.int(), v, X), D @ X)


def test_nan_and_inf_stay_where_they_are(road: str) -> None:
    crow, col = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    X = torch.tensor([[float("nan")] * 5, [1.0] * 5])
    out = matmul.spmm(crow, col, torch.tensor([1.0, float("inf")]), X)
    assert out[0].isnan().all() and out[1].isposinf().all()
    assert matmul.spmm(crow, col, torch.ones(2), X.to(torch.bfloat16).float())[0].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit_results_are_rounded_to_nearest_even(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul, "SMALL", 0)
    X = torch.randn(64, 48).to(dtype)
    v = torch.randn(64).to(dtype)
    v[:2] = torch.tensor([float("inf"), float("nan")], dtype=dtype)
    got = matmul.spmm(torch.arange(65), torch.arange(64), v, X)
    assert torch.equal((v.float()[:, None] * X.float()).to(dtype).nan_to_num(7), got.nan_to_num(7))


def test_duplicates_are_summed_and_each_gets_its_gradient(road: str) -> None:
    crow, col = torch.tensor([0, 3]), torch.tensor([1, 1, 0])
    perm = torch.tensor([2, 0, 1])
    v, X, G = torch.tensor([1.0, 2.0, 3.0]), torch.randn(2, 8), torch.randn(1, 8)
    close(matmul.spmm(crow, col, v, X), (3 * X[1] + 3 * X[0])[None])
    dv, _ = matmul.spmm_backward(
        crow, col, torch.tensor([0, 1, 3]), torch.zeros(3, dtype=torch.int64), perm, v, X, G
    )
    close(dv, (X[col] * G).sum(1))


def test_a_recorded_gradient_is_never_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "SMALL", 0)
    crow, col, *_ = pattern(37, 29, 0.2)
    v = torch.randn(col.numel(), requires_grad=True)
    X = torch.randn(29, 8)
    matmul.spmm(crow, col, v, X).sum().backward()
    assert v.grad is not None
    close(v.grad, X[col].sum(1))
    A = torch.randn(37, 8, requires_grad=True)
    matmul.sddmm(crow, col, A, X).sum().backward()
    assert A.grad is not None and A.grad.abs().sum() > 0


def test_twins_serve_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "SMALL", 0)
    monkeypatch.setattr(gate, "_features", lambda: None)
    gate.plan.cache_clear()
    try:
        assert gate.plan(torch.float32, 16) is None
        crow, col, *_ = pattern(37, 29, 0.2)
        v, X = torch.randn(col.numel()), torch.randn(29, 16)
        assert torch.equal(matmul.spmm(crow, col, v, X), plain.spmm(crow, col, v, X))
    finally:
        gate.plan.cache_clear()


@pytest.mark.parametrize("k", [1, 4, 12, 48, 64, 200])
def test_machines_without_masks_take_widths_that_divide(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "SMALL", 0)
    monkeypatch.setattr(gate, "_features", lambda: {"avx2": True})
    gate.plan.cache_clear()
    try:
        plan = gate.plan(torch.float32, k)
        assert plan is not None and sum(plan.runs[:2]) > 0
        crow, col, *_ = pattern(37, 29, 0.2)
        v, X = torch.randn(col.numel()), torch.randn(29, k)
        close(matmul.spmm(crow, col, v, X), plain.spmm(crow, col, v, X))
    finally:
        gate.plan.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("how", ["plain", "expanded", "strided"])
def test_one_column_has_kernels_of_its_own(dtype: torch.dtype, threads: int, how: str) -> None:
    """Enough entries a column for narrow.py, and enough work for two threads."""
    pattern = Pattern.random((900, 700), nnz=300_000)
    assert narrow.takes(dtype, 700, pattern.nnz)
    v = torch.randn(pattern.nnz, dtype=dtype, requires_grad=True)
    x, g = torch.randn(700, 1, dtype=dtype), torch.randn(900, 1, dtype=dtype)
    if how == "expanded":
        x, g = x[:1].expand(700, 1), g[:1].expand(900, 1)
    elif how == "strided":
        x, g = (torch.cat([t, t], 1)[:, :1] for t in (x, g))
    X = x.requires_grad_()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        out = SparseTensor(pattern, v) @ X
        ours = [out, *torch.autograd.grad(out, (v, X), g)]
    finally:
        torch.set_num_threads(before)
    D = SparseTensor(pattern, v).to_dense()
    theirs = [D @ X, *torch.autograd.grad(D @ X, (v, X), g)]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)
