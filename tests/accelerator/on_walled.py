"""A pytest plugin (`-p on_walled`): the tests that it runs make their tensors on the walled device."""

from __future__ import annotations

import functools
import gc
from typing import Any

import placed
import pytest

_NUMPY = "shares memory with numpy: only the CPU can"
_ONLY_CPU = {
    "test_what_nobody_keeps_is_used_again": "bytes are handed out in memory that is used again on the CPU only",
    "test_a_write_after_the_context_is_left_stops": _NUMPY,
    "test_pytorchs_sentence_stands_whole": "the sentence names the type that a tensor has on the CPU",
    "test_what_backward_keeps_stays_what_it_was[array]": _NUMPY,
    "test_what_backward_keeps_stays_what_it_was[buffer]": _NUMPY,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        given = getattr(item, "callspec", None)
        reason = _ONLY_CPU.get(item.name)
        if "numpy" in item.name or (
            given is not None and getattr(given.params.get("program"), "numpy", False)
        ):
            reason = _NUMPY
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason))


def pytest_collection_finish() -> None:
    """Tests that look for leaks collect all garbage, again and again: what is there now is none."""
    gc.collect()
    gc.freeze()


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
