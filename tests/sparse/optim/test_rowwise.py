"""Row-wise optimizers against torch.optim's, step by step, on both roads."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from gradmend.sparse.errors import SparseError
from gradmend.sparse.kernels import rows
from gradmend.sparse.optim import RowAdagrad, RowAdam


@pytest.fixture(params=["compiled", "plain"])
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(rows, "SMALL", 0 if request.param == "compiled" else float("inf"))
    return request.param


def tables(d: int, dtype: torch.dtype = torch.float32) -> tuple[nn.Embedding, nn.Embedding]:
    torch.manual_seed(0)
    ours = nn.Embedding(50, d, sparse=True, dtype=dtype)
    return ours, copy.deepcopy(ours)


PAIRS = {
    "adam": (RowAdam, torch.optim.SparseAdam, {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6}),
    "adagrad": (
        RowAdagrad,
        torch.optim.Adagrad,
        {"lr": 0.05, "lr_decay": 0.1, "initial_accumulator_value": 0.2},
    ),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("d", [1, 7, 16, 150])
def test_the_steps_are_torchs(road: str, name: str, dtype: torch.dtype, d: int) -> None:
    kind, theirs_kind, options = PAIRS[name]
    ours, theirs = tables(d, dtype)
    optimizers = kind(ours.parameters(), **options), theirs_kind(theirs.parameters(), **options)
    for _ in range(4):
        looked_up = torch.randint(0, 50, (3, 11))  # some rows more than once
        target = torch.randn(3, 11, d, dtype=dtype)
        for table, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            (table(looked_up) - target).pow(2).sum().backward()
            assert table.weight.grad is not None and table.weight.grad.is_sparse
            optimizer.step()
        torch.testing.assert_close(ours.weight, theirs.weight)


def test_rows_not_looked_up_stay_and_decay_shrinks_those_that_were(road: str) -> None:
    for kind in (RowAdam, RowAdagrad):
        table, _ = tables(8)
        before = table.weight.detach().clone()
        optimizer = kind(table.parameters(), lr=0.1, weight_decay=0.5)
        (table(torch.tensor([3, 7, 3])) * 0).sum().backward()  # a gradient of zero: only decay is left
        optimizer.step()
        touched = torch.tensor([3, 7])
        torch.testing.assert_close(table.weight[touched], before[touched] * 0.95)
        rest = torch.ones(50, dtype=torch.bool).index_fill(0, touched, False)
        assert torch.equal(table.weight[rest], before[rest])


def test_a_step_before_backward_is_seen_by_autograd(road: str) -> None:
    table, _ = tables(8)
    optimizer = RowAdam(table.parameters())
    table(torch.tensor([1, 2])).sum().backward()
    later = table.weight.pow(2).sum()  # keeps the weight
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        later.backward()


@pytest.mark.parametrize("kind", [RowAdam, RowAdagrad])
def test_sparse_and_dense_gradients_in_one_optimizer(kind: type) -> None:
    table, head = nn.Embedding(20, 4, sparse=True), nn.Linear(4, 1)
    optimizer = kind([*table.parameters(), *head.parameters()], lr=0.05)
    ids, target = torch.randint(0, 20, (32,)), torch.randn(32, 1)
    losses = []
    for _ in range(30):
        loss = optimizer.step(lambda: _loss(optimizer, head, table, ids, target))
        losses.append(float(loss))
    assert losses[-1] < 0.7 * losses[0]
    state = optimizer.state_dict()
    other = kind([*table.parameters(), *head.parameters()], lr=0.05)
    other.load_state_dict(copy.deepcopy(state))
    assert other.state_dict()["state"][0]["step"] == 30


def _loss(optimizer, head, table, ids, target):  # type: ignore[no-untyped-def]
    optimizer.zero_grad()
    loss = (head(table(ids)) - target).pow(2).mean()
    loss.backward()
    return loss


def test_dense_adagrad_is_torchs() -> None:
    a, b = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    for p, kind in ((a, RowAdagrad), (b, torch.optim.Adagrad)):
        optimizer = kind([p], lr=0.1)
        for _ in range(3):
            p.grad = torch.arange(4.0)
            optimizer.step()
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("by", ["deepcopy", "pickle"])
def test_a_copy_of_adagrad_by_row_steps_as_the_original(by: str, steps: int) -> None:
    p = torch.nn.Parameter(torch.randn(8, 3))
    ours = RowAdagrad([p], by_row=True)
    for _ in range(steps):
        p.grad = torch.randn(8, 3)
        ours.step()
    q, twin = copy.deepcopy((p, ours)) if by == "deepcopy" else pickle.loads(pickle.dumps((p, ours)))
    p.grad = torch.randn(8, 3)
    q.grad = p.grad.clone()
    ours.step()
    twin.step()
    assert torch.equal(p, q) and twin.state[q]["sum"].shape == (8,)


def test_refusals_say_what_to_do() -> None:
    p = nn.Parameter(torch.ones(3, 3))
    p.grad = torch.eye(3).to_sparse()
    with pytest.raises(SparseError, match="make the values the parameter"):
        RowAdam([p]).step()
    with pytest.raises(ValueError, match=r"lr must be at least 0\.0, not -1"):
        RowAdam([p], lr=-1)
    with pytest.raises(ValueError, match="betas"):
        RowAdam([p], betas=(1.0, 0.9))
