"""What fails, when it does, and what is silently wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from said_of_inplace import gradient, harmful, harmless, leaf, line_of

import gradmend
from gradmend.errors import attached


def test_6_a_write_to_a_leaf_raises_at_once() -> None:
    def program(x: torch.Tensor) -> None:
        x[0] = 5.0  # here
        raise AssertionError("never reached")

    for context in (gradmend.watch(), gradmend.heal()):
        with (
            pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad") as raised,
            context,
        ):
            program(leaf())
        conflict = attached(raised.value)
        assert conflict is not None
        assert conflict.rule == "GM121"
        assert conflict.culprits[0].line == line_of(program)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        program(leaf())


KEEPS_OUTPUT = ("exp", "sigmoid", "tanh", "relu", "softmax", "sqrt")
KEEPS_INPUT = ("mul", "matmul", "pow", "log", "sin")
KEEPS_NOTHING = ("add", "sub", "sum", "view")
CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda h: h.softmax(0),
    "mul": lambda h: h * h,
    "matmul": lambda h: h @ h,
    "pow": lambda h: h**3,
    "add": lambda h: h + h,
    "sub": lambda h: h - 1,
    "view": lambda h: h.view(3, 1),
}


@pytest.mark.parametrize("op", [*KEEPS_OUTPUT, *KEEPS_INPUT, *KEEPS_NOTHING])
def test_8_and_10_it_depends_on_what_each_op_keeps(op: str) -> None:
    call = CALLS.get(op, lambda h: getattr(h, op)())

    def writes_input(x: torch.Tensor) -> None:
        h = x * 1
        loss = (call(h) * 1).sum()
        h.mul_(7)  # here
        loss.backward()

    def writes_output(x: torch.Tensor) -> None:
        out = call(x * 1)
        loss = (out * 1).sum()
        out.mul_(7)  # here
        loss.backward()

    def untouched(x: torch.Tensor) -> None:
        (call(x * 1) * 1).sum().backward()

    right = gradient(untouched, leaf()).tolist()
    (harmful if op in KEEPS_INPUT else harmless)(writes_input, right)
    (harmful if op in KEEPS_OUTPUT else harmless)(writes_output, right)
    said = gradmend.saves(op)
    assert said.writing_input_is_safe is (op not in KEEPS_INPUT)
    # `2 ** h` keeps its output too: the answer is for every form of the op.
    assert said.writing_output_is_safe is (op not in KEEPS_OUTPUT and op != "pow")


def test_11_a_function_that_writes_to_its_argument() -> None:
    def shift(t: torch.Tensor) -> torch.Tensor:
        return t.add_(1)

    def on_a_leaf(x: torch.Tensor) -> None:
        shift(x)

    def on_a_kept_value(x: torch.Tensor) -> None:
        h = x * 1
        square = h**2
        h.add_(1)  # here
        square.sum().backward()

    def on_a_free_value(x: torch.Tensor) -> None:
        h = shift(x * 2)
        (h**2).sum().backward()

    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"), gradmend.heal():
        on_a_leaf(leaf())
    harmful(on_a_kept_value, [2, 4, 6])
    harmless(on_a_free_value, [12, 20, 28])


def test_12_layer_norm_in_place_depends_on_the_order() -> None:
    def mean_first(x: torch.Tensor) -> None:
        h = x * 2
        h -= h.mean()
        ((h / h.std()) * torch.tensor([1.0, 2, 4]).double()).sum().backward()

    def std_first(x: torch.Tensor) -> None:
        h = x * 2
        deviation = h.std()
        h -= h.mean()  # here
        ((h / deviation) * torch.tensor([1.0, 2, 4]).double()).sum().backward()

    def by_root_mean_square(x: torch.Tensor) -> None:
        h = x * 2
        h /= torch.sqrt(h.pow(2).mean())  # here
        (h * torch.tensor([1.0, 2, 4]).double()).sum().backward()

    def normed(x: torch.Tensor) -> None:
        h = x * 2
        (((h - h.mean()) / h.std()) * torch.tensor([1.0, 2, 4]).double()).sum().backward()

    def scaled(x: torch.Tensor) -> None:
        h = x * 2
        ((h / torch.sqrt(h.pow(2).mean())) * torch.tensor([1.0, 2, 4]).double()).sum().backward()

    harmless(mean_first, gradient(normed, leaf()).tolist())
    harmful(std_first, gradient(normed, leaf()).tolist())
    harmful(by_root_mean_square, gradient(scaled, leaf()).tolist())


def test_20_a_second_backward_is_another_cause_than_a_write() -> None:
    def twice(x: torch.Tensor) -> None:
        loss = (x**2).sum()
        loss.backward()
        loss.backward()

    def written(x: torch.Tensor) -> None:
        y = x.exp()
        y += 1
        y.sum().backward()

    rules = []
    for program in (twice, written):
        with pytest.raises(RuntimeError) as raised, gradmend.watch():
            program(leaf())
        conflict = attached(raised.value)
        assert conflict is not None
        rules.append(conflict.rule)
    assert rules == ["GM131", "GM101"]
    with pytest.raises(RuntimeError, match="second time"), gradmend.heal():
        twice(leaf())


def test_21_data_is_silent_and_the_others_raise() -> None:
    def through_data(x: torch.Tensor) -> None:
        h = x * 1
        loss = (h**2).sum()
        h.data.mul_(10)  # here
        loss.backward()

    def through_detach(x: torch.Tensor) -> None:
        h = x * 1
        loss = (h**2).sum()
        h.detach().mul_(10)  # here
        loss.backward()

    def under_no_grad(x: torch.Tensor) -> None:
        h = x * 1
        loss = (h**2).sum()
        with torch.no_grad():
            h.mul_(10)  # here
        loss.backward()

    harmful(through_data, [2, 4, 6], silent=True)
    harmful(through_detach, [2, 4, 6])
    harmful(under_no_grad, [2, 4, 6])
