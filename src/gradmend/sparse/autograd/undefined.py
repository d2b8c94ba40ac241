"""A Function whose gradient is undefined has undefined gradients: torch would make zeros, and compute on them."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

F = TypeVar("F", bound=type[torch.autograd.Function])


def skips_undefined(function: F) -> F:
    """Wraps `setup_context` and `backward` of a Function whose first output is the differentiable one."""
    made: Any = function
    setup, derive = made.setup_context, made.backward

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        setup(ctx, inputs, output)
        ctx.set_materialize_grads(False)

    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        if grads[0] is None:
            return (None,) * len(ctx.needs_input_grad)
        return derive(ctx, *grads)

    made.setup_context, made.backward = staticmethod(setup_context), staticmethod(backward)
    return function
