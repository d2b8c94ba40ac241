"""Gaussian processes: gpytorch, and botorch's fits and acquisition functions above it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from world_runs import Case, Trained, Training, World, snapshot, state_of, training

gpytorch = pytest.importorskip("gpytorch")
pytestmark = pytest.mark.world
gp, bo = World("gpytorch"), World("botorch")


def _data(width: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(20, width, dtype=torch.double)
    return x, torch.sin(6 * x[:, 0]) + 0.1 * torch.randn(20, dtype=torch.double)


class _Exact(gpytorch.models.ExactGP):
    def __init__(self, x: Any, y: Any, likelihood: Any, kernel: Any, net: Any = None) -> None:
        super().__init__(x, y, likelihood)
        self.mean, self.kernel, self.net = gpytorch.means.ConstantMean(), kernel, net

    def forward(self, x: torch.Tensor) -> Any:
        z = x if self.net is None else self.net(x)
        return gpytorch.distributions.MultivariateNormal(self.mean(z), self.kernel(z))


def _exact(kernel: Callable[[], Any], deep: bool = False, by_cg: bool = False) -> Callable[[], Training]:
    def case() -> Training:
        x, y = _data()
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        net = (
            torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(inplace=True), torch.nn.Linear(8, 2))
            if deep
            else None
        )
        model = _Exact(x, y, likelihood, kernel(), net).double()
        likelihood.double()
        likelihood.train()
        mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

        def loss() -> torch.Tensor:
            with (
                gpytorch.settings.fast_computations(by_cg, by_cg, by_cg),
                gpytorch.settings.max_cholesky_size(0 if by_cg else 800),
            ):
                return -mll(model(x), y)

        return training(model, loss)

    return case


_scaled = lambda k: gpytorch.kernels.ScaleKernel(k)  # noqa: E731
gp.add("exact GP, RBF", _exact(lambda: _scaled(gpytorch.kernels.RBFKernel(ard_num_dims=2))))
gp.add(
    "exact GP, Matern, conjugate gradients",
    _exact(lambda: _scaled(gpytorch.kernels.MaternKernel(nu=2.5)), by_cg=True),
)
gp.add(
    "exact GP, periodic + linear",
    _exact(lambda: gpytorch.kernels.PeriodicKernel() + gpytorch.kernels.LinearKernel()),
)
gp.add("deep kernel learning", _exact(lambda: _scaled(gpytorch.kernels.RBFKernel()), deep=True))
gp.add(
    "spectral mixture", _exact(lambda: gpytorch.kernels.SpectralMixtureKernel(num_mixtures=2, ard_num_dims=2))
)
gp.add(
    "KISS-GP (grid interpolation)",
    _exact(
        lambda: _scaled(
            gpytorch.kernels.GridInterpolationKernel(
                gpytorch.kernels.RBFKernel(), grid_size=8, num_dims=2, grid_bounds=[(0.0, 1.0)] * 2
            )
        )
    ),
)


@gp.case("stochastic variational GP")
def _variational() -> Training:
    class Model(gpytorch.models.ApproximateGP):
        def __init__(self, points: torch.Tensor) -> None:
            spread = gpytorch.variational.CholeskyVariationalDistribution(len(points))
            super().__init__(gpytorch.variational.VariationalStrategy(self, points, spread))
            self.mean, self.kernel = gpytorch.means.ConstantMean(), _scaled(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    x, y = _data()
    model, likelihood = Model(x[:6].clone()).double(), gpytorch.likelihoods.GaussianLikelihood().double()
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    return training(model, lambda: -mll(model(x), y))


@gp.case("multitask GP")
def _multitask() -> Training:
    class Model(gpytorch.models.ExactGP):
        def __init__(self, x: Any, y: Any, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.MultitaskMean(gpytorch.means.ConstantMean(), num_tasks=2)
            self.kernel = gpytorch.kernels.MultitaskKernel(gpytorch.kernels.RBFKernel(), num_tasks=2, rank=1)

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultitaskMultivariateNormal(self.mean(x), self.kernel(x))

    x, y = _data()
    both = torch.stack([y, -y], -1)
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=2).double()
    model = Model(x, both, likelihood).double()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    return training(model, lambda: -mll(model(x), both))


@bo.case("SingleTaskGP, fitted by L-BFGS in scipy")
def _fit() -> Training:
    pytest.importorskip("botorch")
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP

    x, y = _data()
    model = SingleTaskGP(x, y[:, None])
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)

    def train() -> Trained:
        fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 5}})
        mll.train()
        return Trained([mll(model(*model.train_inputs), model.train_targets).detach()], state_of(model), 5)

    return train


@bo.case("qLogExpectedImprovement, optimised")
def _acquisition() -> Training:
    pytest.importorskip("botorch")
    from botorch.acquisition import qLogExpectedImprovement
    from botorch.models import SingleTaskGP
    from botorch.optim import optimize_acqf
    from botorch.sampling import SobolQMCNormalSampler

    x, y = _data()
    model = SingleTaskGP(x, y[:, None])
    sampler = SobolQMCNormalSampler(torch.Size([16]), seed=0)
    acquisition = qLogExpectedImprovement(model, best_f=y.max(), sampler=sampler)

    def train() -> Trained:
        points, value = optimize_acqf(
            acquisition,
            bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double),
            q=2,
            num_restarts=2,
            raw_samples=8,
            options={"maxiter": 4, "seed": 0},
        )
        return Trained([value.detach()], snapshot({"points": points}), 4)

    return train


@pytest.mark.parametrize("case", gp.cases, ids=str)
def test_gpytorch(case: Case, check: Callable[[Case], None]) -> None:
    check(case)


@pytest.mark.parametrize("case", bo.cases, ids=str)
def test_botorch(case: Case, check: Callable[[Case], None]) -> None:
    check(case)
