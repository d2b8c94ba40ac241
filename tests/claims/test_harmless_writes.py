"""What is said to fail and does not."""

from __future__ import annotations

import torch
from said_of_inplace import harmful, harmless


def test_1_a_sum_that_is_added_to_afterwards() -> None:
    def program(x: torch.Tensor) -> None:
        y = x + 2
        y.add_(1)
        y.sum().backward()

    harmless(program, [1, 1, 1])


def test_2_a_clone_that_is_added_to_before_a_multiple() -> None:
    def program(x: torch.Tensor) -> None:
        y = x.clone()
        y += 2
        (y * 3).sum().backward()

    harmless(program, [3, 3, 3])


def test_3_a_slice_of_a_clone() -> None:
    def program(x: torch.Tensor) -> None:
        y = x.clone()
        y[1:] *= 2
        (y * 3).sum().backward()

    harmless(program, [3, 6, 6])


def test_4_a_write_through_a_view_of_a_view() -> None:
    def program(x: torch.Tensor) -> None:
        y = x.clone()
        y.view(1, 3)[0][1] += 2
        (y * 3).sum().backward()

    harmless(program, [3, 3, 3])


def test_5_masked_data_before_a_linear_layer() -> None:
    def layer() -> torch.nn.Linear:
        torch.manual_seed(0)
        made = torch.nn.Linear(3, 2, bias=False).double()
        with torch.no_grad():
            made.weight.copy_(torch.tensor([[1.0, 2, 3], [4, 5, 6]]))
        return made

    def before_use(x: torch.Tensor) -> None:
        data = x * 2
        data[data > 3] = 0
        layer()(data).sum().backward()

    def after_a_square_kept_it(x: torch.Tensor) -> None:
        data = x * 2
        energy = data**2
        data[data > 3] = 0  # here
        (layer()(data).sum() + energy.sum()).backward()

    harmless(before_use, [10, 0, 0])
    harmful(after_a_square_kept_it, [10 + 8, 16, 24])


def test_7_an_overwritten_entry_no_longer_depends_on_what_was_there() -> None:
    def program(x: torch.Tensor) -> None:
        c = x.clone()
        c[0] = 5.0
        (c + 2 * x).sum().backward()

    harmless(program, [2, 3, 3])


def test_9_a_clone_keeps_the_original_safe() -> None:
    def without(x: torch.Tensor) -> None:
        h = x * 1
        loss = (h**2).sum()
        h.mul_(10)  # here
        loss.backward()

    def with_clone(x: torch.Tensor) -> None:
        h = x * 1
        loss = (h**2).sum()
        h.clone().mul_(10)
        loss.backward()

    harmful(without, [2, 4, 6])
    harmless(with_clone, [2, 4, 6])
