"""Sparse inputs through a DataLoader: rows, one-hot, multi-hot and scipy's, with workers, against dense."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from gradmend.sparse import PatternError, SparseTensor
from gradmend.sparse.data import SparseRows, multi_hot, one_hot


def dense() -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.randn(10, 7, generator=g) * (torch.rand(10, 7, generator=g) < 0.4)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["ours", "scipy"])
def test_rows_come_in_batches(workers: int, kind: str) -> None:
    D = dense()
    S = SparseTensor.from_dense(D)
    if kind == "scipy":
        S = pytest.importorskip("scipy.sparse").csr_matrix(D.numpy())
    loader = DataLoader(SparseRows(S, torch.arange(10)), batch_size=4, num_workers=workers)
    W = torch.randn(7, 3)
    for batch, target in loader:
        assert batch.shape == (len(target), 7)
        torch.testing.assert_close(batch.to_dense(), D[target])
        torch.testing.assert_close(batch @ W, D[target] @ W)


def test_one_hot_and_multi_hot() -> None:
    ids = torch.tensor([[2, 0], [1, 4]])
    assert torch.equal(one_hot(ids, 5).to_dense(), F.one_hot(ids, 5).float())
    assert torch.equal(one_hot(3, 5).to_dense(), F.one_hot(torch.tensor(3), 5).float())
    assert multi_hot([3, 1, 3], 5).to_dense().tolist() == [0, 1, 0, 2, 0]
    assert multi_hot([3, 1, 3], 5, [1.0, 2.0, 0.5]).to_dense().tolist() == [0, 2, 0, 1.5, 0]
    assert multi_hot([], 4).to_dense().tolist() == [0] * 4
    made = [multi_hot([i, i + 1], 9) for i in range(6)]
    (batch,) = DataLoader(made, batch_size=6)
    assert torch.equal(batch.to_dense(), torch.stack([m.to_dense() for m in made]))


def test_wrong_inputs_are_told() -> None:
    with pytest.raises(PatternError):
        one_hot(torch.tensor([5]), 5)
    with pytest.raises(PatternError, match="2 weights for 1 ids"):
        multi_hot([1], 5, [1.0, 2.0])
    with pytest.raises(PatternError, match="3 targets for 10 rows"):
        SparseRows(SparseTensor.from_dense(dense()), [1, 2, 3])
    with pytest.raises(IndexError):
        SparseRows(SparseTensor.from_dense(dense()))[10]


@pytest.mark.parametrize("ids", [[[1, 2], [0]], ["a"], [None], [[1, 2]]], ids=str)
def test_ids_of_one_vector_are_a_list(ids: list) -> None:
    with pytest.raises(PatternError, match="the ids of one vector are a list"):
        multi_hot(ids, 4)
