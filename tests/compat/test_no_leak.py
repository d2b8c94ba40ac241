"""Thousands of training steps: the ledger, the undo log and the process's memory stay flat."""

import gc
import resource

import pytest
import torch
from torch import nn

import gradmend
from gradmend.capture.hooks import backward_calls
from gradmend.capture.taps.hub import LEDGER

pytestmark = pytest.mark.usefixtures("empty_ledger")

STEPS = 10_000


def _resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _sizes():
    timelines = list(LEDGER.timelines.values())
    return {
        "timelines": len(timelines),
        "live": sum(t.lives() for t in timelines),
        "writes": sum(len(t.log) for t in timelines),
        "dead": len(LEDGER.dead),
        "bytes": LEDGER.kept_bytes(),
        "history": len(backward_calls.history),
    }


def _train(steps, in_place):
    torch.manual_seed(0)
    w = nn.Parameter(torch.randn(4, 4))
    state = torch.zeros(4)
    optimizer = torch.optim.SGD([w], lr=1e-4)
    x = torch.randn(2, 4)
    for _ in range(steps):
        optimizer.zero_grad()
        y = torch.tanh(x @ w)
        if in_place:  # a conflict at each step: heal() keeps old bytes, and must let go of them
            z = y * y
            y.mul_(0.5)
            y = z
        state.mul_(0.9).add_(0.1)
        y.sum().backward()
        optimizer.step()


@pytest.mark.slow
@pytest.mark.parametrize(("context", "in_place"), [(gradmend.watch, False), (gradmend.heal, True)])
def test_flat(context, in_place):
    with context() as session:
        _train(STEPS // 10, in_place)
        gc.collect()
        sizes, memory = _sizes(), _resident()
        _train(STEPS, in_place)
        gc.collect()
        later, grown = _sizes(), _resident() - memory
        conflicts = len(session.conflicts)
    for name, size in sizes.items():
        assert later[name] <= size + 64, (name, size, later[name])
    assert later["bytes"] == 0
    assert conflicts <= 8
    assert grown < 8 * 2**20, f"{grown / STEPS:.0f} bytes a step"


def test_flat_under_install():
    gradmend.install()
    try:
        _train(3000, False)  # the ring is full
        gc.collect()
        memory = _resident()
        _train(STEPS, False)
        gc.collect()
        assert _resident() - memory < 8 * 2**20
    finally:
        gradmend.uninstall()


def test_a_save_that_lives_for_ever_beside_writes():
    """A loss kept in a list: its Saves live on, and the storages around them are written at every step."""
    kept = []
    with gradmend.watch():
        w = nn.Parameter(torch.ones(4))
        kept.append((w * torch.ones(4)).sum())  # keeps the ones
        buffer = torch.zeros(4)
        kept.append((torch.ones((), requires_grad=True) * buffer).sum())
        for _ in range(200):
            buffer.add_(1)
        before = LEDGER.kept_bytes()
        for _ in range(3000):
            buffer.add_(1)
        # The first old value is all that the Save needs.
        assert LEDGER.kept_bytes() == before == 16
    del kept
    gc.collect()
    assert LEDGER.kept_bytes() == 0


def test_nothing_is_left_when_the_graphs_are_gone():
    with gradmend.heal():
        losses = []
        for _ in range(50):
            y = torch.ones(8, requires_grad=True).exp()
            losses.append((y * y).sum())
            y.zero_()
        assert LEDGER.kept_bytes() >= 50 * 32
        del losses, y
        gc.collect()
        torch.zeros(1).add_(1)
    assert LEDGER.kept_bytes() == 0
    assert not LEDGER.timelines
