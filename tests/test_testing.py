"""gradmend.testing: safe functions pass untouched, unsafe ones fail with the story."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from gradmend.testing import assert_gradients_safe


def test_a_safe_function_returns_its_result() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    assert torch.equal(assert_gradients_safe(model, x), model(x))
    assert x.grad is None and all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("write", [lambda h: h.add_(1), lambda h: h.data.add_(1)])
def test_an_unsafe_one_fails_with_the_story(write: object) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        h = x.exp()
        out = h * 2
        write(h)  # type: ignore[operator]
        return out

    with pytest.raises(AssertionError, match=r"test_testing\.py:\d+"):
        assert_gradients_safe(fn, torch.ones(3, requires_grad=True))


def test_memory_that_numpy_shares_is_seen() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        h = x.exp()
        h.detach().numpy()[0] = 7
        return h

    with pytest.raises(AssertionError, match="GM202"):
        assert_gradients_safe(fn, torch.ones(3, requires_grad=True))


def test_only_a_parameter_gets_a_gradient() -> None:
    """No input requires grad, and the conflict lies on the way to a parameter."""
    linear = torch.nn.Linear(2, 2)

    def fn(x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = linear(x).sigmoid()
        h.mul_(2)
        return {"out": h}

    with pytest.raises(AssertionError, match="GM101"):
        assert_gradients_safe(fn, torch.ones(1, 2))


def test_errors_of_pytorch_get_their_story_too() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x += 1
        return x

    with pytest.raises(AssertionError, match="leaf"):
        assert_gradients_safe(fn, torch.ones(3, requires_grad=True))


def test_nothing_to_check_is_an_error() -> None:
    with pytest.raises(ValueError, match="requires grad"):
        assert_gradients_safe(lambda x: x + 1, torch.ones(3))


def test_other_errors_are_left_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="size of tensor"):
        assert_gradients_safe(lambda x: x + torch.ones(4), torch.ones(3, requires_grad=True))


def test_results_of_many_shapes() -> None:
    @dataclass
    class Out:
        a: torch.Tensor
        b: list[torch.Tensor]

    def fn(x: torch.Tensor) -> Out:
        h = x.exp()
        h.add_(1)
        return Out(x + 1, [x, h])

    with pytest.raises(AssertionError, match="GM101"):
        assert_gradients_safe(fn, torch.ones(3, requires_grad=True))


@pytest.mark.parametrize("kind", [type("Output", (OrderedDict,), {}), UserDict])
def test_mappings_of_any_class(kind: Callable[..., Any]) -> None:
    x = torch.ones(3, requires_grad=True)
    assert_gradients_safe(lambda x: kind(out=x.exp()), x)
    with pytest.raises(AssertionError, match="GM101"):
        assert_gradients_safe(lambda x: kind(out=x.exp().add_(1)), x)


@pytest.mark.parametrize("way", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
def test_sparse_results(way: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.ones(3, 3, requires_grad=True)
    assert assert_gradients_safe(way, x).layout != torch.strided
    with pytest.raises(AssertionError, match="GM101"):
        assert_gradients_safe(lambda x: way(x.exp().add_(1)), x)
