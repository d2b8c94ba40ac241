"""A dispatch mode of the program's sees the program's ops alone. The saved-tensor hooks cost one: PyTorch detaches for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gradmend


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


def a_whole_tensor(size: int) -> torch.Tensor:
    y = torch.ones(size, requires_grad=True) * 1
    z = y.sin()
    y.add_(1)
    return z.sum()


def parts_of_one() -> torch.Tensor:
    y = torch.ones(3, 3, requires_grad=True) * 1
    z = y.sin()
    y[0] = 5.0
    y[torch.tensor([0, 1])] = 5.0
    y[:, 1].zero_()
    y.masked_fill_(y > 1, 0.0)
    return z.sum()


def behind_its_back() -> torch.Tensor:
    y = torch.ones(3, requires_grad=True).exp()
    y.data.mul_(1)
    y.detach().numpy()
    return y.sum()


def other_memory() -> torch.Tensor:
    x = torch.nn.Parameter(torch.ones(4))
    (x * x).sum().backward()
    with torch.no_grad():
        x.set_(x[1:].clone())
    x.grad = None
    return (x * x).sum()


PROGRAMS: dict[str, Callable[[], torch.Tensor]] = {
    "small": lambda: a_whole_tensor(3),
    "large": lambda: a_whole_tensor(9000),
    "parts": parts_of_one,
    "behind": behind_its_back,
    "memory": other_memory,
}


def seen(program: Callable[[], torch.Tensor], scope: Any, forward_only: bool) -> Counter[str]:
    with scope, Seen() as mode:
        loss = program()
        if not forward_only:
            with suppress(RuntimeError):  # some are refused, by PyTorch and by us
                loss.backward()
    return Counter(op for op in mode.ops if op != "aten.detach.default")


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_as_plain(program: Callable[[], torch.Tensor]) -> None:
    assert seen(program, gradmend.watch(), False) == seen(program, nullcontext(), False)
    assert seen(program, gradmend.heal(), True) == seen(program, nullcontext(), True)


def test_a_parameter_that_becomes_a_part_of_itself() -> None:
    with gradmend.watch():
        w = torch.nn.Parameter(torch.ones(16))
        for _ in range(2):
            with torch.no_grad():
                w.set_(w[1:])
                w.grad = None
            torch.cat((w, w)).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [2.0] * 14


def test_out_of_an_inference_tensor_says_what_pytorch_says() -> None:
    with torch.inference_mode():
        out = torch.ones(3)
    s = torch.ones(3, requires_grad=True)
    with gradmend.heal(), pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        torch.mul(s, s, out=out)
