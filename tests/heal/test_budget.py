"""The budget: sizes as people write them, and an error that says who spends."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from healed import start

import gradmend
from gradmend.capture.memory.budget import parse, readable
from gradmend.capture.taps.hub import LEDGER
from gradmend.errors import BudgetError, UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (None, None),
        (0, 0),
        (512, 512),
        ("512", 512),
        ("512MB", 512_000_000),
        ("1.5 GiB", 3 * 2**29),
        ("2kb", 2000),
    ],
)
def test_sizes(text: int | str | None, size: int | None) -> None:
    assert parse(text) == size


@pytest.mark.parametrize("text", ["much", "-3", "3 parsecs", -1, True, 1.5, ""])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(UsageError, match="is not a size: give bytes, or a string such as '512MB'"):
        gradmend.heal(budget=text)  # type: ignore[arg-type]


def spend(x: torch.Tensor) -> torch.Tensor:
    b = x * 1
    losses = []
    for _ in range(10):
        losses.append((b**2).sum())
        b[:100] *= 1.5  # little
        b.mul_(1.01)  # much
    return torch.stack(losses).sum()


def line_of(mark: str) -> int:
    lines, first = inspect.getsourcelines(spend)
    return first + next(i for i, line in enumerate(lines) if line.rstrip().endswith(mark))


def test_the_error_names_the_largest_writers() -> None:
    with pytest.raises(BudgetError) as raised, gradmend.heal(budget="20KB"):
        spend(start(1000))
    words = str(raised.value)
    assert re.match(
        r"healing would keep \d+\.\d KB of overwritten values, more than its budget of 20\.0 KB\.", words
    )
    writers = re.findall(r"(\S+ KB|\d+ bytes)  .*test_budget\.py:(\d+) \((\w+)\)", words)
    assert [(int(line), op) for _, line, op in writers] == [
        (line_of("# much"), "mul_"),
        (line_of("# little"), "__imul__"),
    ]
    assert words.endswith(
        "Raise the budget, call backward() sooner so that graphs are freed, or write out of place at these lines."
    )


def test_within_the_budget_it_heals() -> None:
    x, y = start(1000), start(1000)
    with gradmend.heal(budget="1MB"):
        spend(x).backward()
    with gradmend.heal():
        spend(y).backward()
    assert torch.equal(x.grad, y.grad)  # type: ignore[arg-type]


def test_a_loop_that_frees_its_graphs_stays_within_any_budget() -> None:
    x = start(1000)
    with gradmend.heal(budget=10_000):
        for _ in range(20):
            b = x * 1
            loss = (b**2).sum()
            b.mul_(2)
            loss.backward()
    assert x.grad is not None
    assert torch.equal(x.grad, 40 * x.detach())


def test_the_write_that_breaks_the_budget_does_not_happen() -> None:
    """The error comes before the write: the tensors are as the line before left them, and can be looked at."""
    x = start(1000)
    b = x * 1
    with pytest.raises(BudgetError), gradmend.heal(budget=100):
        loss = (b**2).sum()
        b.mul_(7)
    assert torch.equal(b, x)
    del loss
    LEDGER.bury()


def test_readable() -> None:
    assert [readable(n) for n in (12, 1200, 34_000_000, 5_600_000_000)] == [
        "12 bytes",
        "1.2 KB",
        "34.0 MB",
        "5.6 GB",
    ]


def test_what_a_watch_left_behind_is_none_of_the_budget() -> None:
    def forward() -> torch.Tensor:
        y = torch.ones(3, requires_grad=True).exp()
        y += 1
        return y

    with gradmend.watch(), pytest.raises(gradmend.ConflictError):
        kept = forward()
        kept.sum().backward()
    with gradmend.heal(budget="12B") as session:
        forward().sum().backward()
    assert session.outcome == "healed"
    assert kept.grad_fn is not None  # alive all the while
