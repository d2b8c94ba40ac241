"""State of the rows touched: how much there is, how it is saved, and that it gives what state for all rows gives."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from gradmend.sparse.errors import SparseError
from gradmend.sparse.kernels import grouping, rows
from gradmend.sparse.optim import RowAdagrad, RowAdam, RowAdamW, RowSGD

KINDS = {
    "adam": lambda p: RowAdam(p, lr=0.05, weight_decay=0.1),
    "adamw": lambda p: RowAdamW(p, lr=0.05, weight_decay=0.1),
    "adagrad": lambda p: RowAdagrad(p, lr=0.05),
    "adagrad by row": lambda p: RowAdagrad(p, lr=0.05, by_row=True),
    "momentum": lambda p: RowSGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "sgd": lambda p: RowSGD(p, lr=0.05, weight_decay=0.1),
}


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(rows, "SMALL", 0 if request.param == "compiled" else float("inf"))
    monkeypatch.setattr(grouping, "_FEW", 0 if request.param == "compiled" else float("inf"))
    return request.param


def step(table: nn.Embedding, optimizer: torch.optim.Optimizer, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, table.num_embeddings // 2, (7,), generator=g)
    target = torch.randn(7, table.embedding_dim, generator=g)
    optimizer.zero_grad()
    (table(ids) - target).pow(2).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_state_goes_on_as_if_nothing_had_been(kind: str) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(40, 5, sparse=True)
    optimizer = KINDS[kind](table.parameters())
    for i in range(4):
        step(table, optimizer, i)
    file = io.BytesIO()
    torch.save((table.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    again = nn.Embedding(40, 5, sparse=True)
    again.load_state_dict(weights)
    loaded = KINDS[kind](again.parameters())
    loaded.load_state_dict(state)
    twin = copy.deepcopy(table)
    copied = pickle.loads(pickle.dumps(optimizer))
    for group in copied.param_groups:  # a pickled optimizer has parameters of its own: give it the twin's
        assert len(group["params"]) == 1
    for i in range(4, 8):
        step(table, optimizer, i)
        step(again, loaded, i)
    assert torch.equal(table.weight, again.weight)
    assert twin.weight.shape == copied.param_groups[0]["params"][0].shape


@pytest.mark.parametrize("kind", ["adam", "adagrad", "momentum"])
def test_state_is_kept_for_rows_that_were_touched(kind: str) -> None:
    table = nn.Embedding(100_000, 5, sparse=True)
    optimizer = KINDS[kind](table.parameters())
    touched: set[int] = set()
    for i in range(5):
        ids = torch.randint(0, 100_000, (900,), generator=torch.Generator().manual_seed(i))
        touched |= set(ids.tolist())
        optimizer.zero_grad()
        table(ids).sum().backward()
        optimizer.step()
    (state,) = optimizer.state_dict()["state"].values()
    assert set(state["rows"].tolist()) == touched and len(state["rows"]) == len(touched)
    sizes = [x.shape[0] for x in optimizer.state[table.weight].values() if isinstance(x, torch.Tensor)]
    assert max(sizes) <= 2 * len(touched)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dense_gradient_after_sparse_ones_finds_the_state(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    table = nn.Embedding(12, 3, sparse=True)
    twin = copy.deepcopy(table)
    a, b = KINDS[kind](table.parameters()), KINDS[kind](twin.parameters())
    if b.param_groups[0].get("decay") == "lazy":
        a.param_groups[0]["decay"] = b.param_groups[0]["decay"] = "touched"
    ids = torch.arange(12)  # every row: state by rows and state for all hold the same numbers
    for i in range(3):
        for which, optimizer in ((table, a), (twin, b)):
            optimizer.zero_grad()
            which(ids).pow(2).sum().mul(0.1 * (i + 1)).backward()
            if which is twin and kind not in ("adam", "adamw"):  # their dense steps have eps elsewhere
                which.weight.grad = which.weight.grad.to_dense()
            optimizer.step()
    torch.testing.assert_close(table.weight, twin.weight)
    for which, optimizer in ((table, a), (twin, b)):
        which.weight.grad = torch.ones(12, 3)
        optimizer.step()
        assert "rows" not in optimizer.state[which.weight]
    torch.testing.assert_close(table.weight, twin.weight)


def test_sgd_is_torchs_and_momentum_too_where_every_row_is_touched() -> None:
    for options in (
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.3},
        {"momentum": 0.8, "nesterov": True},
    ):
        torch.manual_seed(0)
        table = nn.Embedding(6, 4, sparse=True)
        dense = nn.Parameter(table.weight.detach().clone())
        ours = RowSGD(table.parameters(), lr=0.1, weight_decay=0.2, **options)
        theirs = torch.optim.SGD([dense], lr=0.1, weight_decay=0.2, **options)
        for i in range(4):
            ids = torch.cat([torch.arange(6), torch.tensor([2, 2])])
            ours.zero_grad()
            theirs.zero_grad()
            (table(ids) * (i + 1)).pow(2).sum().backward()
            (dense[ids] * (i + 1)).pow(2).sum().backward()
            ours.step()
            theirs.step()
        torch.testing.assert_close(table.weight.detach(), dense.detach())


def test_lazy_decay_is_adamws_once_settled() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(30, 4, sparse=True)
    dense = nn.Parameter(table.weight.detach().clone())
    # Without memory of former gradients, a row that is not touched moves by decay alone.
    ours = RowAdamW(table.parameters(), lr=0.1, betas=(0.0, 0.0), eps=0.0, weight_decay=0.3)
    theirs = torch.optim.AdamW([dense], lr=0.1, betas=(0.0, 0.0), eps=1e-30, weight_decay=0.3)
    for i in range(6):
        ids = torch.randint(0, 20, (5,))
        for optimizer in (ours, theirs):
            optimizer.param_groups[0]["lr"] = 0.1 / (i + 1)
            optimizer.zero_grad()
        scale = torch.randn(5, 4)
        (table(ids) * scale).sum().backward()
        (dense[ids] * scale).sum().backward()
        ours.step()
        theirs.step()
        if i == 3:
            ours.settle()
            torch.testing.assert_close(table.weight.detach(), dense.detach())
    ours.settle()
    torch.testing.assert_close(table.weight.detach(), dense.detach())


def test_adagrad_by_row_is_its_formula() -> None:
    table = nn.Embedding(9, 4, sparse=True, dtype=torch.float64)
    want, total = table.weight.detach().clone(), torch.zeros(9, dtype=torch.float64)
    optimizer = RowAdagrad(table.parameters(), lr=0.3, by_row=True, eps=1e-6)
    for _ in range(3):
        ids, scale = torch.randint(0, 9, (6,)), torch.randn(6, 4, dtype=torch.float64)
        optimizer.zero_grad()
        (table(ids) * scale).sum().backward()
        optimizer.step()
        g = torch.zeros(9, 4, dtype=torch.float64).index_add_(0, ids, scale)
        total += g.square().mean(1)
        want -= 0.3 * g / (total.sqrt() + 1e-6)[:, None]
    torch.testing.assert_close(table.weight.detach(), want)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_gradient_is_an_error_before_anything_changes(kind: str) -> None:
    table, head = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1)
    optimizer = KINDS[kind]([*head.parameters(), *table.parameters()])
    head(table(torch.tensor([1, 2]))).sum().backward()
    optimizer.step()
    before = copy.deepcopy((table.state_dict(), head.state_dict(), optimizer.state_dict()["state"]))
    table.weight.grad._values()[0, 0] = float("nan")
    with pytest.raises(
        SparseError, match=r"parameter 2 of group 0.*NaN or infinity; no parameter was changed"
    ):
        optimizer.step()
    table.weight.grad._values().fill_(1)
    table.weight.grad._indices().add_(10**6)
    with pytest.raises(SparseError, match="rows of the gradient go from"):
        optimizer.step()
    after = (table.state_dict(), head.state_dict(), optimizer.state_dict()["state"])
    torch.testing.assert_close(after, before)


def test_a_saved_state_of_another_table_is_refused() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    optimizer = RowAdam(table.parameters())
    table(torch.tensor([9])).sum().backward()
    optimizer.step()
    other = RowAdam(nn.Embedding(5, 4, sparse=True).parameters())
    with pytest.raises(SparseError, match="its rows go from 9 to 9, and the parameter has 5"):
        other.load_state_dict(optimizer.state_dict())
    assert not other.state


def test_grouping_is_that_of_a_sort() -> None:
    for bound, n in ((1, 5), (7, 50), (5000, 3000), (1 << 31, 100), (100, 0)):
        index = torch.randint(0, bound, (n,))
        got, want = grouping.grouped(index, bound), grouping._by_sort(index)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
        assert torch.equal(got.rows[got.each], index)
    with pytest.raises(SparseError, match="rows go from"):
        grouping.grouped(torch.tensor([3, 9]), 9)


def test_a_dense_gradient_pays_the_decay_that_rows_have_missed() -> None:
    """Against AdamW, with gradients of zero: decay alone moves the rows."""
    table, dense = (nn.Parameter(torch.ones(4, 2, dtype=torch.float64)) for _ in range(2))
    ours = RowAdamW([table], lr=0.1, weight_decay=0.5)
    theirs = torch.optim.AdamW([dense], lr=0.1, weight_decay=0.5)
    for i, index in enumerate([[0], [0, 2], None, [1], None, None, [3]]):
        values = torch.zeros(len(index or ()), 2, dtype=torch.float64)
        named = torch.sparse_coo_tensor(
            torch.tensor([index or []]).long(), values, (4, 2), check_invariants=True
        )
        table.grad = torch.zeros_like(table) if index is None else named
        dense.grad = torch.zeros_like(dense)
        for optimizer in (ours, theirs):
            optimizer.param_groups[0]["lr"] = 0.1 / (i + 1)
            optimizer.step()
        if index is None:
            torch.testing.assert_close(table, dense)
    ours.settle()
    torch.testing.assert_close(table, dense)


def test_a_dense_gradient_after_decay_became_too_large_to_be_lazy() -> None:
    table = nn.Parameter(torch.ones(2, 1))
    optimizer = RowAdamW([table], lr=0.1, weight_decay=0.5)
    table.grad = torch.sparse_coo_tensor([[0]], torch.zeros(1, 1), (2, 1), check_invariants=True)
    optimizer.step()
    optimizer.param_groups[0].update(decay="touched", weight_decay=20.0)
    table.grad = torch.zeros(2, 1)
    optimizer.step()
    torch.testing.assert_close(table.detach(), torch.full((2, 1), -0.95))
