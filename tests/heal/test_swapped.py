"""Saves of a tensor that gets other memory: what happens to the new memory is none of theirs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import gradmend

held_mul_ = torch.Tensor.mul_  # a name taken before anything is armed


def bound(w: torch.nn.Parameter) -> None:
    w.data = torch.zeros(3)


def bound_and_written(w: torch.nn.Parameter) -> None:
    w.data = torch.zeros(3)
    with torch.no_grad():
        w.add_(1)


def bound_twice(w: torch.nn.Parameter) -> None:
    bound(w)
    bound_and_written(w)


def bound_and_back(w: torch.nn.Parameter) -> None:
    own = w.data
    bound_and_written(w)
    w.data = own
    with torch.no_grad():
        w.mul_(5)


SWAPS = [bound, bound_and_written, bound_twice, bound_and_back]


def program(swap: Callable[[torch.nn.Parameter], None]) -> torch.Tensor:
    w, x = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0])), torch.ones(3, requires_grad=True)
    loss = (w * x * w).sum()
    swap(w)
    loss.backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("swap", SWAPS)
def test_the_old_memory_is_what_was_saved(swap: Callable[[torch.nn.Parameter], None]) -> None:
    with gradmend.heal() as session:
        torch.testing.assert_close(program(swap), torch.tensor([1.0, 4.0, 9.0]))
    assert session.outcome == "healed"
    assert "GM110" not in {c.rule for c in session.conflicts}


def test_one_tensor_over_two_slots_in_turn() -> None:
    w = torch.ones(3, requires_grad=True)
    with gradmend.heal():
        ahead, slots, loss = torch.empty(0), [torch.empty(3), torch.empty(3)], torch.zeros(())
        for i in range(3):
            slots[i % 2].data.fill_(i)
            ahead.set_(slots[i % 2])
            loss = loss + (w * ahead).sum()
        loss.backward()
    torch.testing.assert_close(w.grad, torch.full((3,), 3.0))


@pytest.mark.parametrize("before", [True, False])
def test_an_unseen_write_to_the_old_memory_still_stops(before: bool) -> None:
    def swap(w: torch.nn.Parameter) -> None:
        old = w.detach()
        if before:
            held_mul_(old, 3)
        w.data = torch.zeros(3)
        if not before:
            held_mul_(old, 3)

    with gradmend.heal(), pytest.raises(gradmend.ConflictError):
        program(swap)
