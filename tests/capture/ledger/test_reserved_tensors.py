"""Tensor subclasses that refuse the questions of strangers, such as torch's own ExpandedWeight, pass unharmed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads

import gradmend


class Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shy: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return None, 2 * ctx.x * grad


class Shy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"no answer to {func.__name__}")


def _per_sample() -> list[torch.Tensor]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.GroupNorm(1, 2), torch.nn.Flatten(), torch.nn.Linear(8, 2)
    )
    call_for_per_sample_grads(net)(torch.randn(3, 1, 4, 4)).square().sum().backward()
    return [p.grad_sample for p in net.parameters()]


def test_gradients_per_sample_by_expanded_weights() -> None:
    plain = _per_sample()
    with gradmend.watch() as session:
        watched = _per_sample()
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert not session.conflicts


def test_what_ctx_keeps_beside_a_shy_input_is_still_watched() -> None:
    x = torch.ones(3, requires_grad=True)
    shy = torch.ones(3).as_subclass(Shy)
    with gradmend.watch():
        h = x * 2
        out = Kept.apply(shy, h).sum()
        h.data.mul_(3)
        with pytest.raises(gradmend.ConflictError):
            out.backward()


def _by_table() -> list[Any]:
    """What a subclass with a table of functions, made beforehand, is asked for by name."""
    t = torch.ones(2, 2).as_subclass(Tabled)
    asked = [
        t.add_(1),
        t.detach(),
        t.numpy(),
        torch.relu_(t),
        torch.add(t, 1),
        torch.nn.functional.linear(t, t),
    ]
    asked += [torch.cat([t, t]), torch.matmul(t, t), torch.nn.functional.gelu(t)]
    return asked


class Tabled(torch.Tensor):
    table = {  # noqa: RUF012
        f: f.__name__
        for f in (
            torch.Tensor.add_,
            torch.Tensor.detach,
            torch.Tensor.numpy,
            torch.relu_,
            torch.add,
            torch.nn.functional.linear,
            torch.cat,
            torch.matmul,
            torch.nn.functional.gelu,
        )
    }

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (
            cls.table[func]
            if func in cls.table
            else super().__torch_function__(func, types, args, kwargs or {})
        )


def test_a_table_of_functions_still_knows_them() -> None:
    plain = _by_table()
    assert plain == list(Tabled.table.values())
    with gradmend.watch():
        assert _by_table() == plain


class Plain(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_writes_under_a_mode_are_still_seen() -> None:
    x = torch.ones(3, requires_grad=True)
    with gradmend.watch(), Plain():
        h = x.exp()
        h.add_(1)
        with pytest.raises(gradmend.ConflictError, match="GM"):
            h.sum().backward()
    with gradmend.watch(), Plain():
        h = x * 2
        h.detach().mul_(3)
        with pytest.raises(gradmend.ConflictError, match="GM210"):
            (h * 5).sum().backward()
