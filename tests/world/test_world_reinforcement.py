"""Reinforcement learning: torchrl's losses over tensordicts, and stable-baselines3's own loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from world_runs import Case, Trained, Training, World, state_of

pytestmark = pytest.mark.world
rl, dicts, baselines = World("torchrl"), World("tensordict"), World("stable-baselines3")


def _net(inside: int, out: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(inside, 16), torch.nn.Tanh(), torch.nn.Linear(16, out))


def _batch(actions: int = 2) -> Any:
    from tensordict import TensorDict

    return TensorDict(
        {
            "observation": torch.randn(8, 5, 3),
            "action": torch.rand(8, 5, actions) * 1.8 - 0.9,
            "next": {
                "observation": torch.randn(8, 5, 3),
                "reward": torch.randn(8, 5, 1),
                "done": torch.zeros(8, 5, 1, dtype=torch.bool),
                "terminated": torch.zeros(8, 5, 1, dtype=torch.bool),
            },
        },
        [8, 5],
    )


def _actor() -> Any:
    from tensordict.nn import TensorDictModule
    from torchrl.modules import NormalParamExtractor, ProbabilisticActor, TanhNormal

    net = TensorDictModule(
        torch.nn.Sequential(_net(3, 4), NormalParamExtractor()),
        in_keys=["observation"],
        out_keys=["loc", "scale"],
    )
    return ProbabilisticActor(
        net, in_keys=["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True
    )


def _loop(
    loss: Any, updater: Any, batch: Any, prepare: Callable[[], None] | None = None, steps: int = 3
) -> Training:
    """torchrl's usual loop: the losses of a loss module are summed; targets follow softly."""
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-2)

    def train() -> Trained:
        losses = []
        for _ in range(steps):
            if prepare is not None:
                prepare()
            out = loss(batch)
            total = sum(value for key, value in out.items() if key.startswith("loss"))
            total.backward()
            torch.nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if updater is not None:
                updater.step()
            losses.append(total.detach().clone())
        return Trained(losses, state_of(loss), steps)

    return train


@rl.case("PPO, generalised advantages")
def _ppo() -> Training:
    pytest.importorskip("torchrl")
    from torchrl.modules import ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    actor, critic = _actor(), ValueOperator(_net(3, 1), in_keys=["observation"])
    batch = _batch()
    with torch.no_grad():
        actor(batch)
    loss = ClipPPOLoss(actor, critic)
    advantage = GAE(gamma=0.9, lmbda=0.9, value_network=critic)
    return _loop(loss, None, batch, lambda: advantage(batch))


@rl.case("SAC, soft targets")
def _sac() -> Training:
    pytest.importorskip("torchrl")
    from torchrl.modules import ValueOperator
    from torchrl.objectives import SACLoss, SoftUpdate

    class Quality(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = _net(5, 1)

        def forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            return self.net(torch.cat([observation, action], -1))

    loss = SACLoss(
        _actor(), ValueOperator(Quality(), in_keys=["observation", "action"]), action_spec=_bounded()
    )
    loss.make_value_estimator(gamma=0.9)
    return _loop(loss, SoftUpdate(loss, eps=0.9), _batch())


def _bounded() -> Any:
    from torchrl.data import Bounded

    return Bounded(-torch.ones(2), torch.ones(2))


@rl.case("DQN, delayed target")
def _dqn() -> Training:
    pytest.importorskip("torchrl")
    from torchrl.data import OneHot
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss, HardUpdate

    actor = QValueActor(_net(3, 4), in_keys=["observation"], spec=OneHot(4))
    loss = DQNLoss(actor, action_space="one-hot", delay_value=True)
    loss.make_value_estimator(gamma=0.9)
    batch = _batch()
    batch["action"] = torch.nn.functional.one_hot(torch.randint(4, (8, 5)), 4)
    return _loop(loss, HardUpdate(loss, value_network_update_interval=2), batch)


@dicts.case("functional call with parameters in a TensorDict, vmapped ensemble")
def _ensemble() -> Training:
    pytest.importorskip("tensordict")
    from tensordict import TensorDict, from_modules

    nets = [_net(3, 1) for _ in range(3)]
    parameters = from_modules(*nets, as_module=True)
    shell = _net(3, 1).to("meta")
    x = torch.randn(8, 3)
    seen = TensorDict({"mean": torch.zeros(3)}, [])
    optimizer = torch.optim.SGD(parameters.parameters(), lr=0.1)

    def call(data: torch.Tensor, weights: Any) -> torch.Tensor:
        with weights.to_module(shell):
            return shell(data)

    def train() -> Trained:
        losses = []
        for _ in range(3):
            out = torch.vmap(call, (None, 0), randomness="different")(x, parameters)
            loss = out.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen["mean"].copy_(out.detach().mean((1, 2)))
            losses.append(loss.detach().clone())
        return Trained(losses, state_of(parameters), 3)

    return train


def _learns(algorithm: str, env: str, steps: int, **options: Any) -> Callable[[], Training]:
    def case() -> Training:
        library = pytest.importorskip("stable_baselines3")
        model = getattr(library, algorithm)(
            "MlpPolicy", env, seed=0, device="cpu", policy_kwargs={"net_arch": [16]}, **options
        )

        def train() -> Trained:
            model.learn(steps)
            state = state_of(model.policy)
            return Trained([next(iter(state.values()))], state, steps)

        return train

    return case


baselines.add("PPO, CartPole", _learns("PPO", "CartPole-v1", 64, n_steps=32, batch_size=16, n_epochs=2))
baselines.add("A2C, CartPole", _learns("A2C", "CartPole-v1", 40))
baselines.add(
    "DQN, CartPole",
    _learns("DQN", "CartPole-v1", 60, learning_starts=20, batch_size=8, target_update_interval=10),
)
baselines.add("SAC, Pendulum", _learns("SAC", "Pendulum-v1", 40, learning_starts=20, batch_size=8))
baselines.add("TD3, Pendulum", _learns("TD3", "Pendulum-v1", 40, learning_starts=20, batch_size=8))
baselines.add("DDPG, Pendulum", _learns("DDPG", "Pendulum-v1", 40, learning_starts=20, batch_size=8))


@pytest.mark.parametrize("case", [*rl.cases, *dicts.cases], ids=str)
def test_torchrl(case: Case, check: Callable[[Case], None]) -> None:
    check(case)


@pytest.mark.parametrize("case", baselines.cases, ids=str)
def test_stable_baselines(case: Case, check: Callable[[Case], None]) -> None:
    check(case)
