"""Old values are handed out in memory that is used again: never while anybody still holds what was handed out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

import gradmend

N = 12


class Keeping(torch.autograd.Function):
    """A square whose backward keeps what it was given."""

    kept: ClassVar[list[Any]] = []
    keep: ClassVar[Callable[[torch.Tensor], Any]] = staticmethod(lambda t: t)

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        Keeping.kept.append(Keeping.keep(x))
        return 2 * g * x


def rows() -> torch.Tensor:
    return torch.arange(N * 5.0).view(N, 5) + 1


def total_of(x: torch.Tensor, op: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    b = x * 1
    total = torch.zeros(())
    for i in range(N):
        total = total + op(b[i]).sum()
        b[i] = 0.0
    return total


@pytest.mark.parametrize(
    "keep",
    [
        lambda t: t,
        lambda t: t.detach(),
        lambda t: t[1:],
        lambda t: t.view(5, 1),
        lambda t: t.detach().numpy(),
        lambda t: t.untyped_storage(),
        lambda t: memoryview(t.detach().numpy()),
        lambda t: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(t.detach())),
    ],
    ids=["tensor", "detached", "slice", "view", "array", "storage", "buffer", "dlpack"],
)
def test_what_backward_keeps_stays_what_it_was(keep: Callable[[torch.Tensor], Any]) -> None:
    Keeping.kept, Keeping.keep = [], staticmethod(keep)
    x = rows().requires_grad_()
    with gradmend.heal():
        total_of(x, Keeping.apply).backward()
    assert x.grad is not None and torch.equal(x.grad, 2 * rows())
    assert len(Keeping.kept) == N
    for row, kept in zip(rows().flip(0), Keeping.kept, strict=True):
        if isinstance(kept, torch.UntypedStorage):
            kept = torch.tensor([], dtype=row.dtype).set_(kept)
        got = torch.as_tensor(kept).flatten()
        assert torch.equal(got, row[-got.numel() :])
    Keeping.kept = []


def test_a_graph_of_the_gradient_holds_what_it_was_given() -> None:
    x = rows().requires_grad_()
    with gradmend.heal():
        (g,) = torch.autograd.grad(total_of(x, lambda r: r**3), x, create_graph=True)
        g.sum().backward()
    assert x.grad is not None and torch.allclose(x.grad, 6 * rows())


def test_a_product_reads_two_at_a_time() -> None:
    x = rows().requires_grad_()
    with gradmend.heal():
        b, c = x * 1, x + 1
        total = torch.zeros(())
        for i in range(N):
            total = total + (b[i] * c[i]).sum()
            b[i] = 0.0
            c[i] = 0.0
        total.backward()
    assert x.grad is not None and torch.equal(x.grad, 2 * rows() + 1)


def test_saved_values_that_a_node_shows() -> None:
    x = rows().requires_grad_()
    with gradmend.heal():
        b = x * 1
        squares = []
        for i in range(N):
            squares.append(b[i] ** 2)
            b[i] = 0.0
        shown = [s.grad_fn._saved_self for s in squares]  # type: ignore[union-attr]
    for row, value in zip(rows(), shown, strict=True):
        assert torch.equal(value, row)


def test_under_inference_mode_nothing_is_kept_for_later() -> None:
    x = rows().requires_grad_()
    with gradmend.heal():
        y = total_of(x, lambda r: r**2)
        with torch.inference_mode():
            torch.autograd.grad(y, x, retain_graph=True)
        (g,) = torch.autograd.grad(y, x, create_graph=False)
        z = total_of(x, lambda r: r**3)
        (h,) = torch.autograd.grad(z, x, create_graph=True)
        h.sum().backward()
    assert torch.equal(g, 2 * rows())
    assert x.grad is not None and torch.allclose(x.grad, 6 * rows())


def test_shapes_and_dtypes_side_by_side() -> None:
    a, b = rows().requires_grad_(), rows().double().requires_grad_()
    with gradmend.heal():
        u, v = a * 1, b.t() * 1
        total = torch.zeros((), dtype=torch.float64)
        for i in range(5):
            total = total + (u[i] ** 2).sum() + (v[i] ** 2).sum()
            u[i], v[i] = 0.0, 0.0
        total.backward()
    assert a.grad is not None and torch.equal(a.grad[:5], 2 * rows()[:5])
    assert b.grad is not None and torch.equal(b.grad, 2 * rows().double())
