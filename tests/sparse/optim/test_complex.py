"""Complex parameters: pairs of real numbers, as torch.optim's dense steps have them, on every road."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradmend.sparse.kernels import rows
from gradmend.sparse.optim import RowAdagrad, RowAdam, RowAdamW, RowSGD

DTYPES = [torch.complex64, torch.complex128]
PAIRS: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "adam": (RowAdam, torch.optim.Adam, torch.optim.SparseAdam, {"lr": 0.1}),
    "adamw": (RowAdamW, torch.optim.AdamW, None, {"lr": 0.1, "weight_decay": 0.2}),
    "adagrad": (
        RowAdagrad,
        torch.optim.Adagrad,
        torch.optim.Adagrad,
        {"lr": 0.1, "initial_accumulator_value": 0.3},
    ),
    "sgd": (RowSGD, torch.optim.SGD, None, {"lr": 0.1, "momentum": 0.9}),
}


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(rows, "SMALL", 0 if request.param == "compiled" else float("inf"))
    return request.param


def drawn(seed: int, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def coo(index: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.sparse_coo_tensor(index[None], values, shape, check_invariants=True)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dense_steps_are_torchs(name: str, dtype: torch.dtype) -> None:
    kind, theirs, _, options = PAIRS[name]
    for shape in ((4, 2), (3,), ()):
        a = nn.Parameter(drawn(0, *shape, dtype=dtype))
        b = nn.Parameter(a.detach().clone())
        ours, torchs = kind([a], **options), theirs([b], **options)
        for i in range(1, 4):
            grad = drawn(i, *shape, dtype=dtype)
            a.grad, b.grad = grad.conj().resolve_conj().conj(), grad  # the first with its conjugate bit set
            ours.step()
            torchs.step()
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", [name for name, pair in PAIRS.items() if pair[2] is not None])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sparse_steps_are_torchs_on_the_pairs(name: str, dtype: torch.dtype) -> None:
    kind, _, theirs, options = PAIRS[name]
    a = nn.Parameter(drawn(0, 6, 3, dtype=dtype))
    b = nn.Parameter(torch.view_as_real(a.detach()).clone())
    ours, torchs = kind([a], **options), theirs([b], **options)
    for i in range(1, 4):
        index, values = torch.tensor([4, i, i, 0]), drawn(i, 4, 3, dtype=dtype)
        a.grad = coo(index, values, (6, 3))
        b.grad = coo(index, torch.view_as_real(values), (6, 3, 2)).coalesce()
        ours.step()
        torchs.step()
    torch.testing.assert_close(torch.view_as_real(a.detach()), b.detach())


@pytest.mark.parametrize("by_row", [False, True])
def test_adagrads_sparse_and_dense_steps_are_the_same(by_row: bool) -> None:
    for shape in ((5, 3), (5,)):
        a = nn.Parameter(drawn(0, *shape, dtype=torch.complex128))
        b = nn.Parameter(a.detach().clone())
        ours, dense = (RowAdagrad([p], lr=0.1, by_row=by_row, initial_accumulator_value=0.1) for p in (a, b))
        for i in range(1, 5):
            index, values = torch.tensor([1, 4, 1]), drawn(i, 3, *shape[1:], dtype=torch.complex128)
            a.grad = coo(index, values, shape)
            b.grad = a.grad.to_dense()
            if i == 3:
                a.grad = b.grad  # state by rows becomes state of all
            ours.step()
            dense.step()
        torch.testing.assert_close(a, b)
        again = RowAdagrad([a], by_row=by_row)
        again.load_state_dict(ours.state_dict())
        assert torch.equal(again.state[a]["sum"], ours.state[a]["sum"])


def test_lazy_decay_of_complex_rows_is_settled() -> None:
    a = nn.Parameter(drawn(0, 4, 2, dtype=torch.complex128))
    before = a.detach().clone()
    optimizer = RowAdamW([a], lr=0.1, weight_decay=0.5)
    for _ in range(3):
        a.grad = coo(torch.tensor([2]), torch.zeros(1, 2, dtype=torch.complex128), (4, 2))
        optimizer.step()
    optimizer.settle()
    torch.testing.assert_close(a.detach(), before * 0.95**3)
