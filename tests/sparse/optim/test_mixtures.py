"""Dense and sparse gradients in one optimizer: clipping, scaling, accumulation, hooks, all against the dense twin."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradmend.sparse.nn import clip_grad_norm_, clip_grad_value_, edit_grad
from gradmend.sparse.optim import RowAdagrad, RowSGD


class Model(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 8, sparse=sparse), nn.Linear(8, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids))


def pair() -> tuple[Model, Model]:
    torch.manual_seed(0)
    ours, twin = Model(True), Model(False)
    twin.load_state_dict(copy.deepcopy(ours.state_dict()))
    return ours, twin


MAKERS = {
    "sgd": (lambda p: RowSGD(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "adagrad": (lambda p: RowAdagrad(p, lr=0.1), lambda p: torch.optim.Adagrad(p, lr=0.1)),
}


def batch(i: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(i)
    return torch.randint(0, 50, (16,), generator=g), torch.randn(16, 1, generator=g)


def loss_of(model: Model, i: int) -> Tensor:
    ids, target = batch(i)
    return (model(ids) - target).pow(2).mean()


@pytest.mark.parametrize("name", MAKERS)
def test_a_hundred_steps_are_the_dense_optimizers(name: str) -> None:
    (ours, twin), (make, make_twin) = pair(), MAKERS[name]
    optimizers = make(ours.parameters()), make_twin(twin.parameters())
    for i in range(100):
        for model, optimizer in zip((ours, twin), optimizers, strict=True):
            optimizer.zero_grad()
            for part in range(2):  # accumulated
                loss_of(model, 2 * i + part).backward()
            clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    torch.testing.assert_close(dict(ours.named_parameters()), dict(twin.named_parameters()))


def test_clipping_by_value_and_a_hook_that_edits() -> None:
    ours, twin = pair()

    def edit(values: Tensor, rows: Any = None) -> Tensor:
        return values.clamp(-0.01, 0.02).masked_fill(values.abs() < 0.001, 0.0)

    ours.table.weight.register_hook(edit_grad(edit))
    twin.table.weight.register_hook(edit_grad(edit))
    for model in (ours, twin):
        loss_of(model, 3).backward()
        clip_grad_value_(model.parameters(), 0.015)
    torch.testing.assert_close(ours.table.weight.grad.to_dense(), twin.table.weight.grad)
    frozen = torch.tensor([1, 2, 3])
    ours.table.weight.register_hook(
        edit_grad(lambda values, rows: values * (~torch.isin(rows, frozen))[:, None], rows=True)
    )
    ours.zero_grad()
    ours.table(torch.tensor([2, 7, 2])).sum().backward()
    assert (
        ours.table.weight.grad.to_dense()[2].eq(0).all() and ours.table.weight.grad.to_dense()[7].ne(0).all()
    )


def test_grad_scaler_unscales_and_skips() -> None:
    ours, twin = pair()
    optimizer, twins = RowSGD(ours.parameters(), lr=0.1), torch.optim.SGD(twin.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for i in range(5):
        optimizer.zero_grad()
        twins.zero_grad()
        scaler.scale(loss_of(ours, i)).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(ours.parameters(), 0.3)
        scaler.step(optimizer)
        scaler.update()
        loss_of(twin, i).backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.3)
        twins.step()
    torch.testing.assert_close(dict(ours.named_parameters()), dict(twin.named_parameters()))
    before = copy.deepcopy(ours.state_dict())
    optimizer.zero_grad()
    scaler.scale(loss_of(ours, 0) * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(ours.state_dict(), before)
    assert scaler.get_scale() == 512.0
