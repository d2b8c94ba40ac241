"""Train a model plainly, then under watch(), from the same seed: losses and parameters must not differ by a bit.

A case is a function that builds everything and gives back a `Training`; it runs three times (plain, watched, plain
again), so that a model which can't repeat itself is not mistaken for a fault of ours.
"""

from __future__ import annotations

import importlib.metadata
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import gradmend
from gradmend.model import Session

STEPS = 3
Training = Callable[[], "Trained"]


@dataclass
class Trained:
    losses: list[torch.Tensor]
    state: dict[str, torch.Tensor]
    steps: int


@dataclass
class Outcome:
    """One row of the table in docs/world.md."""

    library: str
    version: str
    model: str
    steps: int
    identical: bool
    harmful: list[str]
    refused: int
    ratio: float


@dataclass
class World:
    """The cases of one library."""

    library: str
    cases: list[Case] = field(default_factory=list)

    def case(self, name: str) -> Callable[[Callable[[], Training]], Callable[[], Training]]:
        def enter(make: Callable[[], Training]) -> Callable[[], Training]:
            self.add(name, make)
            return make

        return enter

    def add(self, name: str, make: Callable[[], Training]) -> None:
        self.cases.append(Case(self.library, name, make))


@dataclass(frozen=True)
class Case:
    library: str
    name: str
    make: Callable[[], Training]

    def __str__(self) -> str:
        return self.name

    def run(self) -> Outcome:
        plain, _, before = _run(self.make, None)
        watched, session, during = _run(self.make, "watch")
        again, _, after = _run(self.make, None)
        assert plain.losses, "the case trains nothing"
        assert _same(plain, again), "the plain run does not repeat itself: seed what it draws from"
        return Outcome(
            self.library,
            importlib.metadata.version(self.library),
            self.name,
            plain.steps,
            _same(plain, watched),
            [f"{c.rule} {c.kind}: {c.message}" for c in session if c.kind != "refused-but-right"],
            sum(c.times for c in session if c.kind == "refused-but-right"),
            during / min(before, after),
        )


def _run(make: Callable[[], Training], policy: str | None) -> tuple[Trained, Session, float]:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    with _policy(policy) as session:
        training = make()
        start = time.perf_counter()
        trained = training()
        seconds = time.perf_counter() - start
    return trained, session, seconds


def _policy(policy: str | None) -> Any:
    if policy is None:
        return nullcontext(Session())
    chosen = os.environ.get("GRADMEND_WORLD", policy)  # "paranoid" and "heal" for a closer look
    if chosen == "heal":
        return gradmend.heal()
    return gradmend.watch(paranoid=chosen == "paranoid")


def _same(a: Trained, b: Trained) -> bool:
    return (
        len(a.losses) == len(b.losses)
        and a.state.keys() == b.state.keys()
        and all(_same_bits(x, y) for x, y in zip(a.losses, b.losses, strict=True))
        and all(_same_bits(x, b.state[name]) for name, x in a.state.items())
    )


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return a.numel() == 0 or torch.equal(
        a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8)
    )


def state_of(*modules: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all parameters and buffers, under names that are unique over the modules."""
    return snapshot(
        {
            f"{i}.{name}": t
            for i, m in enumerate(modules)
            for name, t in [*m.named_parameters(), *m.named_buffers()]
        }
    )


def snapshot(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: t.detach().clone() for name, t in tensors.items() if t.layout == torch.strided}


def training(
    model: torch.nn.Module,
    loss: Callable[[], torch.Tensor],
    steps: int = STEPS,
    optimizer: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer] | None = None,
) -> Training:
    """The usual loop: zero_grad, loss, backward, clip, step."""
    model.train()
    made = optimizer(model.parameters()) if optimizer else torch.optim.AdamW(model.parameters(), lr=1e-2)

    def train() -> Trained:
        losses = []
        for _ in range(steps):
            made.zero_grad()
            value = loss()
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            made.step()
            losses.append(value.detach().clone())
        return Trained(losses, state_of(model), steps)

    return train
