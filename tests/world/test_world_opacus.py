"""opacus: gradients per sample, clipped and noised."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from world_runs import Case, Trained, Training, World, state_of

pytest.importorskip("opacus")
pytestmark = pytest.mark.world
world = World("opacus")


class _Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from opacus.layers import DPLSTM

        self.words, self.lstm, self.head = (
            torch.nn.Embedding(20, 8),
            DPLSTM(8, 8, batch_first=True),
            torch.nn.Linear(8, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.words(x))[0][:, -1])


def _conv() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.GroupNorm(2, 4),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(36, 3),
    )


def _private(
    make: Callable[[], torch.nn.Module], data: Callable[[], torch.Tensor], **options: Any
) -> Callable[[], Training]:
    def case() -> Training:
        from opacus import PrivacyEngine

        warnings.simplefilter("ignore")
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(data(), torch.randint(3, (12,))), batch_size=4
        )
        made = PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            **options,
        )
        model, optimizer, loader = made[0], made[1], made[-1]
        judge = made[2] if len(made) == 4 else F.cross_entropy

        def train() -> Trained:
            losses = []
            for x, y in loader:
                if not len(x):
                    continue
                optimizer.zero_grad()
                loss = judge(model(x), y)
                loss.backward()
                optimizer.step()
                value = loss if isinstance(loss, torch.Tensor) else torch.tensor(loss.item())
                losses.append(value.detach().clone())
            return Trained(losses, state_of(model), len(losses))

        return train

    return case


def _images() -> torch.Tensor:
    return torch.randn(12, 1, 8, 8)


world.add("DP-SGD, convolutions", _private(_conv, _images))
world.add("DP-SGD by torch.func", _private(_conv, _images, grad_sample_mode="functorch"))
world.add("DP-SGD by expanded weights", _private(_conv, _images, grad_sample_mode="ew"))
world.add(
    "DP-SGD by ghost clipping",
    lambda: _private(_conv, _images, grad_sample_mode="ghost", criterion=torch.nn.CrossEntropyLoss())(),
)
world.add("DP-SGD, DPLSTM", _private(_Recurrent, lambda: torch.randint(20, (12, 5))))
world.add(
    "DP-SGD, flat clipping, no Poisson sampling",
    lambda: _private(_conv, _images, clipping="flat", poisson_sampling=False)(),
)


@pytest.mark.parametrize("case", world.cases, ids=str)
def test_trains_as_it_does_alone(case: Case, check: Callable[[Case], None]) -> None:
    check(case)
