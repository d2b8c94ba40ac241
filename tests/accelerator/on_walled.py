"""A pytest plugin (`-p on_walled`): the tests that it runs make their tensors on the walled device."""

from __future__ import annotations

import functools
from typing import Any

import placed
import pytest

_NUMPY = "shares memory with numpy: only the CPU can"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        given = getattr(item, "callspec", None)
        if given is not None and getattr(given.params.get("program"), "numpy", False):
            item.add_marker(pytest.mark.skip(_NUMPY))


def _patterns_too() -> None:
    """A random pattern is drawn on the CPU, for every device the same; a program moves it."""
    from gradmend.sparse import Pattern

    drawn = Pattern.random

    @functools.wraps(drawn)
    def random(*args: Any, **options: Any) -> Pattern:
        return drawn(*args, **options).to(placed.DEVICE)

    Pattern.random = staticmethod(random)  # type: ignore[method-assign]


def _any_size_is_large_enough() -> None:
    """Compiled kernels take small operands too, as far as they ask for the size: they must ask for the device."""
    from gradmend.sparse.kernels import gustavson, matmul, rows, segment

    for module in (gustavson, matmul, rows, segment):
        module.SMALL = 0  # type: ignore[attr-defined]


_patterns_too()
_any_size_is_large_enough()
