"""Old values go back to where they were, whatever the shape of the region."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from healed import healed, plain

import gradmend


def test_an_expanded_column_is_kept_once_and_put_back() -> None:
    def program(x: torch.Tensor) -> None:
        y = x * 1
        loss = (y[:, 0].expand(4, 3) ** 2).sum()
        y.mul_(3)
        loss.backward()

    with pytest.raises(RuntimeError, match="modified by an inplace"):
        plain(program, 3, 4)
    right = torch.zeros(3, 4, dtype=torch.float64)
    right[:, 0] = 8 * torch.tensor([1.0, 5, 9])
    assert torch.equal(healed(program, 3, 4), right)


def test_index_put_with_a_missing_index_means_the_whole_dimension() -> None:
    def program(x: torch.Tensor) -> None:
        y = x * 1
        loss = (y**2).sum()
        torch.ops.aten.index_put_(y, [None, torch.tensor([1])], torch.zeros((), dtype=y.dtype))
        loss.backward()

    assert torch.equal(healed(program, 3, 4), 2 * torch.arange(1.0, 13, dtype=torch.float64).reshape(3, 4))


def test_detach_and_data_of_a_piece_that_may_not_be_written() -> None:
    """Asking such a view for its history raises; taking an alias of it must not."""
    x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    for context in (gradmend.watch(), gradmend.heal()):
        base = x * 1
        piece = base.unbind(0)[1]
        with context:
            base.add_(1)
            with pytest.raises(RuntimeError, match="returns multiple views"):
                _ = piece.grad_fn
            assert piece.detach().tolist() == [2, 2, 2]
            assert piece.data.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.__setitem__(torch.tensor([99]), 0.0),
        lambda y: y.__setitem__(torch.ones(7, dtype=torch.bool), 0.0),
        lambda y: y.masked_fill_(torch.ones(7, dtype=torch.bool), 0.0),
        lambda y: y.scatter_(0, torch.tensor([99]), 0.0),
        lambda y: y.index_add_(0, torch.tensor([99]), torch.ones(1, dtype=y.dtype)),
        lambda y: y.put_(torch.tensor([99]), torch.ones(1, dtype=y.dtype)),
    ],
)
def test_a_bad_index_gets_pytorchs_own_words(write: Callable[[torch.Tensor], object]) -> None:
    x = torch.ones(4, dtype=torch.float64, requires_grad=True)
    errors = []
    for context in (nullcontext(), gradmend.watch(), gradmend.heal()):
        with pytest.raises((IndexError, RuntimeError)) as raised, context:
            y = x * 1
            loss = (y**2).sum()
            write(y)
        errors.append((raised.type, str(raised.value).splitlines()[0]))
        loss.backward()
    assert len(set(errors)) == 1
