"""An op that saves what it then overwrites, in every way to hand it its own target: the Save is older than the Write."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import gradmend
import warm

T = torch.Tensor
OPS: dict[str, Callable[[T], object]] = {
    "itself": lambda x: x.mul_(x),
    "detached": lambda x: x.mul_(x.detach()),
    "data": lambda x: x.mul_(x.data),
    "part": lambda x: x[2:].mul_(x[:1].detach()),
    "by name": lambda x: x.mul_(other=x),
    "two by name": lambda x: x.addcmul_(tensor1=x, tensor2=x.detach()),
    "foreach": lambda x: torch._foreach_mul_([x], [x]),
    "exponent": lambda x: x.pow_(x.detach()),
    "its own exponent": lambda x: x.pow_(x),
    "its own exponent, by the operator": lambda x: x.__ipow__(x),
    "its own exponent, foreach": lambda x: torch._foreach_pow_([x], [x]),
    "its own exponent, a view": lambda x: x.hypot_(x.view(-1)),
    "its own power of two": lambda x: x.ldexp_(x),
    "weight": lambda x: x.lerp_(torch.ones(3), x.detach()),
}
BEFORE: dict[str, Callable[[T], T]] = {
    "no save before": lambda x: x.sum(),
    "a save of a part": lambda x: (x[:1] ** 2).sum(),
    "a save of all, written since": lambda x: ((x**2).sum(), x.add_(1))[0],
}


def gradient(op: Callable[[T], object], before: Callable[[T], T]) -> T:
    a = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x = a.clone()
    s = before(x)
    op(x)
    (s + x.sum()).backward()
    assert a.grad is not None
    return a.grad


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_healed_as_if_all_were_copied(op: Callable[[T], object], before: Callable[[T], T]) -> None:
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t):
        want = gradient(op, before)
    with gradmend.heal():
        assert torch.equal(gradient(op, before), want)


@pytest.mark.parametrize("scope", [gradmend.watch, gradmend.heal])
def test_a_target_with_another_counter(scope: Callable[[], Any]) -> None:
    """PyTorch itself says nothing here, and is wrong."""
    a = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with scope():
        x = a.clone()
        d = x.data
        d.addcmul_(x, x)
        if scope is gradmend.watch:
            with pytest.raises(gradmend.ConflictError, match="GM201"):
                d.sum().backward()
        else:
            d.sum().backward()
            assert a.grad is not None and a.grad.tolist() == [2, 4, 6]


MODE = """
import torch, gradmend

class Squares(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, f, types, args=(), kwargs=None):
        if f.__name__ == "add_":
            self.sum = (args[0] * args[0]).sum()
        return f(*args, **(kwargs or {}))

a = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
with gradmend.heal():
    x = a.clone()
    s = (x[:1] ** 2).sum()
    with Squares() as mode:
        x.add_(1)
    (s + mode.sum + x.sum()).backward()
assert a.grad.tolist() == [5, 5, 7], a.grad
"""


def test_a_mode_that_saves_before_it_lets_the_write_through() -> None:
    """In a process of its own, for what a failed backward leaves behind."""
    done = warm.run([sys.executable, "-c", MODE], timeout=300)
    assert done.returncode == 0, done.stderr


class Where:
    """An index by `__index__`."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __index__(self) -> int:
        return self.at


class Places(Sequence[int]):
    """A sequence that is no list."""

    def __init__(self, *at: int) -> None:
        self.at = list(at)

    def __len__(self) -> int:
        return len(self.at)

    def __getitem__(self, i: Any) -> Any:
        return self.at[i]


def change(key: Any) -> None:
    match key:
        case Where():
            key.at = 1
        case Places():
            key.at[0] = 1
        case tuple():
            change(key[0])
        case _:
            key[0] = 1


@pytest.mark.parametrize(
    "key",
    [array("l", [0]), [0], Places(0), Where(0), (Places(0),), torch.tensor([0])],
    ids=lambda k: type(k).__name__,
)
def test_an_index_that_is_changed_after_its_use(key: Any) -> None:
    a, b = torch.tensor([1.0, 2.0, 3.0], requires_grad=True), torch.tensor([1.0, 2.0, 3.0])
    with gradmend.heal():
        s = (a * b).sum()
        b[key] = 9.0
        change(key)
        s.backward()
    assert a.grad is not None and a.grad.tolist() == [1, 2, 3]


@pytest.mark.parametrize("scope", [gradmend.watch, gradmend.heal])
@pytest.mark.parametrize("op", ["index_add_", "scatter_"])
def test_a_write_that_pytorch_refuses_changes_nothing(scope: Callable[[], Any], op: str) -> None:
    a, b = torch.tensor([1.0, 2.0, 3.0], requires_grad=True), torch.tensor([1.0, 2.0, 3.0])
    with scope():
        s = (a * b).sum()
        with pytest.raises(RuntimeError, match="more than one element"):
            getattr(b[:1].expand(4), op)(0, torch.tensor([1]), torch.ones(1))
        s.backward()
    assert a.grad is not None and a.grad.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "write",
    [
        lambda t: t.index_fill_(0, torch.tensor([1]), 7.0),
        lambda t: t.masked_fill_(torch.tensor([True, False, False, True]), 7.0),
    ],
    ids=["index_fill_", "masked_fill_"],
)
def test_elements_of_an_expanded_tensor_are_put_back(write: Callable[[T], object]) -> None:
    a, b = torch.tensor([1.0, 2.0, 3.0], requires_grad=True), torch.tensor([1.0, 2.0, 3.0])
    with gradmend.heal():
        s = (a * b).sum()
        write(b[:1].expand(4))
        s.backward()
    assert a.grad is not None and a.grad.tolist() == [1, 2, 3]
