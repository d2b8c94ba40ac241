"""Deep and wide graphs, each with a gradient that is known by hand: `python deep_programs.py POLICY SIZE [NAME ...]`.

Their memory at its peak goes to stderr.

Every step multiplies by x = 1, so a tensor made by n steps is x ** n, and its gradient is n.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import gradmend

Program = Callable[[int], float]
PROGRAMS: dict[str, Program] = {}
REFUSED = {"overwritten", "unread", "rows"}  # PyTorch itself refuses these


def program(made: Program) -> Program:
    PROGRAMS[made.__name__] = made
    return made


def one() -> torch.Tensor:
    return torch.ones(1, dtype=torch.float64, requires_grad=True)


def slope(x: torch.Tensor) -> float:
    assert x.grad is not None
    return float(x.grad)


@program
def chain(n: int) -> float:
    x = h = one()
    for _ in range(n - 1):
        h = h * x
    h.backward()
    return slope(x) / n


@program
def retained(n: int) -> float:
    x = h = one()
    for _ in range(n - 1):
        h = h * x
    h.backward(retain_graph=True)
    h.backward()
    return slope(x) / (2 * n)


@program
def dropped(n: int) -> float:
    """An exception half-way: the graph is let go as it stands."""
    x = h = one()
    try:
        for i in range(n):
            h = h * x
            if i == n - 1:
                raise KeyError(i)
    except KeyError:
        pass
    del h
    return 1.0


@program
def wide(n: int) -> float:
    x = one()
    torch.cat([x * 1.0 * x for _ in range(n)]).sum().backward()
    return slope(x) / (2 * n)


@program
def diamonds(n: int) -> float:
    x = h = one()
    for _ in range(n // 4):
        h = h * x * 0.5 + h * x * 0.5
    h.backward()
    return slope(x) / (n // 4 + 1)


@program
def rows(n: int) -> float:
    """A simulator that fills its buffer row by row."""
    n = min(n, 16_000)
    x = one()
    out = torch.ones(n, 1, dtype=torch.float64)
    for i in range(1, n):
        out[i] = out[i - 1] * x
    out[-1].sum().backward()
    return slope(x) / (n - 1)


@program
def overwritten(n: int) -> float:
    """What every other step kept is overwritten; to be healed."""
    x = h = one()
    for _ in range(n // 2):
        a = h * x
        h = a * x
        a.add_(1.0)
    h.backward()
    return slope(x) / (n // 2 * 2 + 1)


@program
def unread(n: int) -> float:
    """What `take` kept is overwritten, and its backward does not read it: each node is asked which slot that was."""
    x = h = one()
    place = torch.zeros(1, dtype=torch.int64)
    for _ in range(n // 2):
        a = h * x
        h = torch.take(a, place)
        a.zero_()
    h.backward()
    return slope(x) / (n // 2 + 1)


@program
def logged(n: int) -> float:
    """Values are taken out of the graph at each step, of the chain itself and of what hangs on it."""
    x = h = one()
    for _ in range(n // 2):
        h = h * x
        h.detach(), h.sum().data
    h.backward()
    return slope(x) / (n // 2 + 1)


class Times(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(h, x)
        return h * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h, x = ctx.saved_tensors
        return grad * x, grad * h


@program
def functions(n: int) -> float:
    x = h = one()
    for _ in range(n // 4):
        h = Times.apply(h, x) * x
    h.backward()
    return slope(x) / (n // 4 * 2 + 1)


@program
def roots(n: int) -> float:
    """A gradient is taken at each step, and the step goes on from there."""
    x = h = one()
    for _ in range(n // 2):
        last, h = h, h * x
        torch.autograd.grad(h, last, retain_graph=True)
    h.backward()
    return slope(x) / (n // 2 + 1)


@program
def twice(n: int) -> float:
    """A second backward, whose story is told by a walk through the whole graph."""
    x = h = one()
    for _ in range(n // 2):
        h = h * x
    h.backward()
    try:
        h.backward()
    except RuntimeError as error:
        if "second time" in str(error):
            return slope(x) / (n // 2 + 1)
        raise
    return 0.0


def main(policy: str, size: int, names: list[str]) -> None:
    refuses = policy in ("plain", "install")
    for name in names or [n for n in PROGRAMS if not (refuses and n in REFUSED)]:
        if policy == "install":
            gradmend.install()
        context = getattr(gradmend, policy)() if policy in ("watch", "heal") else nullcontext()
        with context:
            try:
                found = PROGRAMS[name](size)
            except gradmend.ConflictError:
                assert policy == "watch" and name == "overwritten", name
                found = 1.0
        gc.collect()
        print(name, found, flush=True)
    if sys.platform == "linux":
        # Of this process alone: ru_maxrss counts what its parent had when it forked.
        told = Path("/proc/self/status").read_text(encoding="utf-8")
        print("peak", re.findall(r"VmHWM:\s*(\d+)", told)[0], "kB", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
