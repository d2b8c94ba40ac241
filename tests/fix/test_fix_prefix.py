"""Runs that share the beginning of a program start from a fork of it, and record what a run from the start does."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from fix_trials import Make

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="copies of a running program are made on Linux"
)

SLOW = """
from __future__ import annotations
import torch
import time
print("begun")
began = time.process_time()
data = torch.zeros(4)
while time.process_time() - began < 0.4:
    data = data + torch.rand(4)
"""
PROGRAM = """
x = torch.ones(4, requires_grad=True)
y = (x * torch.rand(4)).exp()
y += 1
y.sum().backward()
print("ended")
"""


def test_a_later_run_starts_below_and_equals_one_from_the_start(runner: Make) -> None:
    source = SLOW.replace("time.process_time() - began < 0.4", "data[0] < 30000") + PROGRAM
    trials = runner(source)
    trials.run({}, "plain")
    assert trials.prefix["line"] == source.splitlines().index("    data = data + torch.rand(4)") + 1
    edited = source.replace("y += 1", "y = y + 1").encode()
    file = str(trials.scratch.script)
    shared = trials.run({file: edited}, "plain")
    healed = trials.run({}, "heal")
    trials.prefix = {}
    fresh = trials.run({file: edited}, "plain")
    assert shared.outcome == healed.outcome == fresh.outcome == "finished"
    assert shared.stdout == healed.stdout == fresh.stdout == "begun\nended\n"
    for run in (shared, healed):
        np.testing.assert_array_equal(run.calls[0]["roots"][0], fresh.calls[0]["roots"][0])
        assert [f["line"] for f in run.calls[0]["stack"]] == [f["line"] for f in fresh.calls[0]["stack"]]
        assert run.calls[0]["stack"][0]["file"] == file
    assert fresh.seconds > 0 and healed.extra["conflicts"]


def test_an_edit_above_starts_anew(runner: Make) -> None:
    source = SLOW + PROGRAM
    trials = runner(source)
    trials.run({}, "plain")
    assert trials.prefix
    file = str(trials.scratch.script)
    edited = source.replace('print("begun")', 'print("other")').replace("y += 1", "y = y + 1").encode()
    assert trials.run({file: edited}, "plain").stdout == "other\nended\n"


@pytest.mark.parametrize(
    "more",
    [
        "w = torch.ones(2, requires_grad=True); h = w.exp()",  # a graph is alive
        "import threading; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "file = open('notes.txt', 'w')",
        "torch.ones(2, requires_grad=True).sum().backward()",
    ],
    ids=["graph", "thread", "file", "backward"],
)
def test_no_copy_where_a_fork_would_not_be_the_same(runner: Make, more: str) -> None:
    source = SLOW.replace('print("begun")', more) + PROGRAM
    trials = runner(source)
    trials.run({}, "plain")
    assert not trials.prefix
