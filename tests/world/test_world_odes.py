"""torchdiffeq: neural differential equations, through the solver and by the adjoint."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from world_runs import Case, Training, World, training

torchdiffeq = pytest.importorskip("torchdiffeq")
pytestmark = pytest.mark.world
world = World("torchdiffeq")


class _Field(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.net(y**3)


def _solved(method: str, adjoint: bool) -> Callable[[], Training]:
    def case() -> Training:
        field = _Field()
        solve = torchdiffeq.odeint_adjoint if adjoint else torchdiffeq.odeint
        start, times = torch.randn(4, 2), torch.linspace(0.0, 1.0, 4)
        target = torch.randn(4, 4, 2)
        return training(field, lambda: F.mse_loss(solve(field, start, times, method=method), target))

    return case


for _method in ("dopri5", "rk4", "implicit_adams", "bosh3", "midpoint"):
    world.add(f"odeint, {_method}", _solved(_method, False))
for _method in ("dopri5", "rk4"):
    world.add(f"adjoint, {_method}", _solved(_method, True))


@world.case("odeint_event, a bouncing ball")
def _ball() -> Training:
    class Falls(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gravity = torch.nn.Parameter(torch.tensor([9.8]))

        def forward(
            self, t: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]
        ) -> tuple[torch.Tensor, torch.Tensor]:
            _, speed = state
            return speed, -self.gravity.expand_as(speed)

    ball = Falls()

    def loss() -> torch.Tensor:
        state = (torch.tensor([10.0]), torch.tensor([0.0]))
        when, _ = torchdiffeq.odeint_event(
            ball,
            state,
            torch.tensor(0.0),
            event_fn=lambda t, y: y[0].sum(),
            odeint_interface=torchdiffeq.odeint,
        )
        return (when - 1.0).square()

    return training(ball, loss)


@pytest.mark.parametrize("case", world.cases, ids=str)
def test_trains_as_it_does_alone(case: Case, check: Callable[[Case], None]) -> None:
    check(case)
