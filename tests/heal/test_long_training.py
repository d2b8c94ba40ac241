"""Ten thousand steps: the ledger is as empty after the last as after the first, and memory does not grow."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
import torch

import gradmend
from gradmend.capture.hooks import backward_calls
from gradmend.capture.taps.hub import LEDGER

STEPS = 10_000


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc to see the memory in use")
@pytest.mark.parametrize("context", [gradmend.watch, gradmend.heal], ids=["watch", "heal"])
def test_flat_memory_and_a_flat_ledger(context: Any) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(inplace=True), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = torch.randn(4, 8), torch.randn(4, 1)
    healing = context is gradmend.heal
    sizes: list[int] = []
    with context() as session:
        for step in range(STEPS):
            optimizer.zero_grad()
            out = model(x)
            loss = ((out - y) ** 2).mean()
            if healing:
                hidden = out * 1
                loss = loss + (hidden**2).mean()
                hidden[1:] *= 2  # something to heal at each step
            loss.backward()
            optimizer.step()
            if step % 1000 == 999:
                del out, loss
                if healing:
                    del hidden
                LEDGER.bury()
                assert LEDGER.kept_bytes() == 0
                sizes.append(resident())
    assert [c.times for c in session.conflicts] == ([STEPS] if healing else [])
    gc.collect()
    LEDGER.bury()
    assert not LEDGER.timelines
    assert not LEDGER.dead
    assert len(backward_calls.history) <= 64
    # The first thousand steps warm up caches; from then on a leak of 100 bytes a step would show.
    assert sizes[-1] - sizes[1] < 800_000, [s - sizes[0] for s in sizes]
