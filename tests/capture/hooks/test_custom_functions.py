"""Custom Functions: what they keep on ctx, and how they say that they wrote their input."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import gradmend
from gradmend.capture.taps import hub

RIGHT = torch.tensor([2.0, 4.0, 6.0])


class Own(list):  # type: ignore[type-arg]
    def first(self) -> torch.Tensor:
        return self[0]


def square(hold: Callable[[torch.Tensor], Any], read: Callable[[Any], torch.Tensor]) -> Any:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.held = hold(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return 2 * read(ctx.held) * grad

    return Square.apply


HOLDERS: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]] = {
    "tensor": (lambda x: x, lambda h: h),
    "tuple": (lambda x: (x, 1), lambda h: h[0]),
    "ordered dict": (lambda x: OrderedDict(a=x), lambda h: h["a"]),
    "default dict": (lambda x: defaultdict(int, a=x), lambda h: h["a"]),
    "deque": (lambda x: deque([x]), lambda h: h[0]),
    "a list of somebody's own": (lambda x: Own([x]), lambda h: h.first()),
}
every = pytest.mark.parametrize("how", HOLDERS)


def leaf() -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 3.0], requires_grad=True)


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    """Exceptions hold the graphs that they were raised in: no Save may live on into another test."""
    yield
    gc.collect()
    hub.LEDGER.bury()  # else the next Write does
    assert not hub.awake


@every
def test_what_ctx_holds_is_healed(how: str) -> None:
    apply, x = square(*HOLDERS[how]), leaf()
    with gradmend.heal():
        h = x.clone()
        y = apply(h)
        h.data.add_(1)
        y.sum().backward()
    assert torch.equal(x.grad, RIGHT)


@every
def test_and_so_it_is_after_the_context(how: str) -> None:
    apply, x = square(*HOLDERS[how]), leaf()
    with gradmend.heal():
        h = x.clone()
        y = apply(h)
        h.data.add_(1)
    y.sum().backward()
    assert torch.equal(x.grad, RIGHT)
    with gradmend.watch():
        y = apply(h := leaf().clone())
    h.data.add_(1)  # no tap sees it: only the bytes tell
    with pytest.raises(gradmend.ConflictError):
        y.sum().backward()


def test_a_ctx_is_freed_with_its_graph() -> None:
    with gradmend.heal():
        y = square(*HOLDERS["tensor"])(leaf().clone())
        node = weakref.ref(y.grad_fn)
        del y
        gc.collect()
    assert node() is None


def test_what_was_marked_dirty_may_be_kept() -> None:
    """Detached: an output that its own ctx holds is never freed, with or without us."""

    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            x.exp_()
            ctx.mark_dirty(x)
            ctx.y = x.detach()
            return x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return ctx.y * grad

    for scope in (gradmend.watch, gradmend.heal):
        x = leaf()
        with scope():
            Exp.apply(x.clone()).sum().backward()
        assert torch.equal(x.grad, x.detach().exp())
    x = leaf()
    with pytest.raises(gradmend.ConflictError), gradmend.watch():
        y = Exp.apply(x.clone())
        y.mul_(2)
        y.sum().backward()


def test_under_no_grad_nothing_is_recorded_and_nothing_told() -> None:
    class Unmarked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            return x.clone()

    with gradmend.watch(), torch.no_grad():
        Unmarked.apply(leaf())


def test_torch_func_takes_its_tensors_back() -> None:
    class Square(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x * x

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.x = inputs[0]

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return 2 * ctx.x * grad

    for scope in (gradmend.watch, gradmend.heal):
        x = leaf()
        with scope():
            torch.vmap(Square.apply)(x).sum().backward()
            inner = torch.func.grad(lambda v: torch.vmap(Square.apply)(v).sum())(x.detach())
        assert torch.equal(x.grad, RIGHT) and torch.equal(inner, RIGHT)
