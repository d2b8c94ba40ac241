"""Each function of the edge, called again and again: no object and no memory is left behind."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import pytest
import torch

from gradmend.capture.memory import layouts
from gradmend.capture.native.loading import edge as compiled
from gradmend.capture.taps import hub

pytestmark = pytest.mark.skipif(compiled is None, reason="no compiler was found when gradmend was installed")

BASE = torch.arange(24.0).view(4, 6)
VIEW = BASE[1:3, ::2]
DEEP = torch.zeros(1, 1, 1, 1, 1, 1, 2)  # of more dimensions than are remembered
STORAGE = BASE.untyped_storage()
OLD = bytes(96)


def _wrong(call: Callable[[], object]) -> Callable[[], object]:
    def raises() -> None:
        with pytest.raises(TypeError):
            call()

    return raises


CALLS: dict[str, Callable[[], object]] = {
    "raw_here": lambda: compiled.raw_here(),
    "layout_of": lambda: [compiled.layout_of(t) for t in (BASE, VIEW, DEEP)],
    "layout_of, many": lambda: [compiled.layout_of(BASE[i:, j:]) for i in range(4) for j in range(6)],
    "layout_of, none": lambda: compiled.layout_of(torch.eye(2).to_sparse()),
    "layout_at": lambda: [
        compiled.layout_at(BASE, key) for key in (1, (1, slice(None, None, 2)), ..., (0, 0))
    ],
    "layout_at, none": lambda: [compiled.layout_at(BASE, key) for key in (9, None, [0, 1], (0, 0, 0))],
    "layout_at, wrong": _wrong(lambda: compiled.layout_at(BASE)),
    "copy_out": lambda: [compiled.copy_out(BASE, STORAGE, 8, end) for end in (8, 40, 4096)],
    "version": lambda: compiled.version(BASE),
    "ref": lambda: compiled.ref(torch.ones(1)),
    "fill": lambda: [compiled.fill(torch.empty(24), OLD), compiled.fill(torch.empty(3), OLD)],
    "fill, wrong": _wrong(lambda: compiled.fill(BASE)),
    "a tap": lambda: compiled.Tap(torch.Tensor.add_, len, len, "add_", "data", hub.awake, bool),
}


def _grown(call: Callable[[], object], times: int) -> int:
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(times):
        call()
    gc.collect()
    return sys.getallocatedblocks() - before


@pytest.mark.parametrize("name", list(CALLS))
def test_nothing_is_left_behind(name: str) -> None:
    call = CALLS[name]
    _grown(call, 50)  # caches fill
    assert _grown(call, 500) < 100, "of 500 calls, each would leave one or more"


def test_what_is_handed_out_again_is_held_once_for_each_holder() -> None:
    found = layouts.layout_of(VIEW)
    before = sys.getrefcount(found)
    for _ in range(100):
        layouts.layout_of(VIEW)
        layouts.layout_at(BASE, (slice(1, 3), slice(None, None, 2)))
    assert sys.getrefcount(found) == before
