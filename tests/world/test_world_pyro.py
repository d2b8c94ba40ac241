"""Pyro: variational inference and Hamiltonian Monte Carlo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from world_runs import Case, Trained, Training, World, snapshot, state_of

pyro = pytest.importorskip("pyro")
pytestmark = pytest.mark.world
world = World("pyro-ppl")


def _regression(x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
    dist = pyro.distributions
    weight = pyro.sample("weight", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(x @ weight, scale), obs=y)


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(20, 3)
    return x, x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.randn(20)


def _guided(guide: Callable[[], Any], optimizer: Callable[[], Any]) -> Callable[[], Training]:
    def case() -> Training:
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        x, y = _data()
        svi = pyro.infer.SVI(_regression, guide(), optimizer(), pyro.infer.Trace_ELBO(num_particles=2))

        def train() -> Trained:
            losses = [torch.tensor(svi.step(x, y)) for _ in range(4)]
            return Trained(losses, snapshot(dict(pyro.get_param_store().items())), 4)

        return train

    return case


def _adam() -> Any:
    return pyro.optim.ClippedAdam({"lr": 0.05})


world.add("SVI, AutoNormal", _guided(lambda: pyro.infer.autoguide.AutoNormal(_regression), _adam))
world.add(
    "SVI, AutoMultivariateNormal",
    _guided(lambda: pyro.infer.autoguide.AutoMultivariateNormal(_regression), _adam),
)
world.add(
    "SVI, inverse autoregressive flow",
    _guided(lambda: pyro.infer.autoguide.AutoIAFNormal(_regression, hidden_dim=[8]), _adam),
)


@world.case("NUTS")
def _nuts() -> Training:
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    x, y = _data()
    chain = pyro.infer.MCMC(
        pyro.infer.NUTS(_regression, max_tree_depth=3), num_samples=4, warmup_steps=4, disable_progbar=True
    )

    def train() -> Trained:
        chain.run(x, y)
        samples = chain.get_samples()
        return Trained([samples["scale"].clone()], snapshot(samples), 8)

    return train


@world.case("variational autoencoder")
def _vae() -> Training:
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    dist = pyro.distributions
    encoder = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Softplus(), torch.nn.Linear(8, 4))
    decoder = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(inplace=True), torch.nn.Linear(8, 6))
    x = (torch.rand(10, 6) > 0.5).float()

    def model(x: torch.Tensor) -> None:
        pyro.module("decoder", decoder)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(torch.zeros(len(x), 2), 1.0).to_event(1))
            pyro.sample("x", dist.Bernoulli(logits=decoder(z)).to_event(1), obs=x)

    def guide(x: torch.Tensor) -> None:
        pyro.module("encoder", encoder)
        mean, spread = encoder(x).chunk(2, -1)
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(mean, spread.exp()).to_event(1))

    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), pyro.infer.JitTrace_ELBO())

    def train() -> Trained:
        losses = [torch.tensor(svi.step(x)) for _ in range(4)]
        return Trained(losses, state_of(encoder, decoder), 4)

    return train


@pytest.mark.parametrize("case", world.cases, ids=str)
def test_trains_as_it_does_alone(case: Case, check: Callable[[Case], None]) -> None:
    check(case)
