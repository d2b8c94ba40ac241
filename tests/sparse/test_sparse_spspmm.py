"""Sparse @ sparse in one piece and in many: the same product, gradients on the patterns."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from gradmend.sparse import Pattern, SparseError, SparseTensor
from gradmend.sparse.functions import spspmm

G = torch.Generator().manual_seed(0)
P = Pattern.random((4, 5), density=0.4, generator=G)
Q = Pattern.random((5, 3), density=0.4, generator=G)


@pytest.mark.parametrize(
    ("chunk", "dtype"), [(1 << 21, torch.complex128), (7, torch.float64), (1, torch.float64)]
)
def test_in_pieces_of_any_size(chunk: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spspmm, "_CHUNK", chunk)
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
