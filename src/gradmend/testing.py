"""For tests: assert that a function's gradients can be trusted.

from gradmend.testing import assert_gradients_safe

def test_block():
    assert_gradients_safe(Block(), torch.randn(8, 4))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradmend.api.dry import seeded, tensors_in
from gradmend.api.watching import watch, words_of
from gradmend.capture.graph import nodes
from gradmend.errors import ConflictError, attached


def assert_gradients_safe(fn: Callable[..., Any], *inputs: Any, paranoid: bool = True, **kwargs: Any) -> Any:
    """Run fn and a backward from all that it returns: no value that backward needs may have been overwritten, not
    even in silence. No `.grad` is touched. Returns what fn returned; fails with the story as an AssertionError.

    >>> import torch
    >>> assert_gradients_safe(lambda x: x.exp().add_(1), torch.ones(3, requires_grad=True))
    Traceback (most recent call last):
    ...
    AssertionError: ...
    """
    __tracebackhide__ = True
    try:
        with watch(paranoid=paranoid):
            result = fn(*inputs, **kwargs)
            outputs = [t for t in tensors_in(result) if t.requires_grad]
            if not outputs:
                raise ValueError(
                    "nothing that the function returned requires grad: there is no gradient to check"
                )
            leaves = _leaves(outputs)
            roots, ones = seeded(outputs)
            torch.autograd.grad(roots, leaves, ones, allow_unused=True)
            return result
    except RuntimeError as error:
        if isinstance(error, ConflictError):
            raise AssertionError(str(error)) from None
        conflict = attached(error)
        if conflict is None:
            raise
        raise AssertionError(f"{error}\n\n{words_of(conflict)}") from None


def _leaves(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Whatever would get a gradient: parameters too, so that no branch of the graph is passed over."""
    found: dict[int, torch.Tensor] = {id(t): t for t in outputs if t.is_leaf}
    todo = [t.grad_fn for t in outputs if t.grad_fn is not None]
    seen: set[Any] = set(todo)
    while todo:
        node = todo.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            found[id(leaf)] = leaf
        for below, _ in nodes.edges(node):
            if below is not None and below not in seen:
                seen.add(below)
                todo.append(below)
    return list(found.values())
