"""An edit that is taken back harms what was made in between, and nothing else."""

from __future__ import annotations

import pytest
import torch

import gradmend


def inner() -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True) * 2


def used_before_it_was_undone() -> None:
    h = inner()
    old = h.detach().clone()
    h.data.mul_(2)
    y = h.cumsum(0) * h.detach().clone()  # computed with the edited value; neither op keeps `h`
    h.data.copy_(old)
    y.sum().backward()


def undone_in_part() -> None:
    h = inner()
    old = h.detach().clone()
    for i in range(4):
        h.data[i] = 7.0
    h.data[:3] = old[:3]
    h.norm().backward()


def another_value_put_back() -> None:
    h = inner()
    old = h.detach().clone()
    h.data.mul_(2)
    h.data.copy_(old + 1)
    h.norm().backward()


def put_back_to_the_second_of_three() -> None:
    h = inner()
    h.data.mul_(2)
    second = h.detach().clone()
    h.data.mul_(3)
    h.data.copy_(second)
    h.norm().backward()


def a_slice_undone_but_for_one_element() -> None:
    h = inner()
    old = h.detach().clone()
    h.data[1:3].mul_(3)
    h.data[1] = old[1]
    h.norm().backward()


def _probed(h: torch.Tensor) -> torch.Tensor:
    old = h.detach().clone()
    h.data[1:3].mul_(3)
    h.detach().norm()
    for i in (1, 2):
        h.data[i] = old[i]
    return h


def _probed_one_by_one(h: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        for i in range(4):
            old = h[i].item()
            for other in (old * 1.5, old * 0.5, old):
                h[i] = other
                h.norm()
    return h


@pytest.mark.parametrize("context", [gradmend.watch, gradmend.heal])
@pytest.mark.parametrize("probe", [_probed, _probed_one_by_one])
def test_an_edit_undone_piece_by_piece_is_none(probe, context):
    with context() as session:
        probe(inner()).norm().backward()
    assert session.outcome == "clean" and not session.conflicts


@pytest.mark.parametrize("context", [gradmend.watch, gradmend.heal])
@pytest.mark.parametrize(
    "program",
    [
        used_before_it_was_undone,
        undone_in_part,
        another_value_put_back,
        put_back_to_the_second_of_three,
        a_slice_undone_but_for_one_element,
    ],
)
def test_what_is_left_of_an_edit_is_told(program, context):
    with pytest.raises(gradmend.ConflictError) as stop, context():
        program()
    assert stop.value.conflict.rule == "GM210"
