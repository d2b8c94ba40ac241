"""PyTorch's own op database, overwritten in every way: healed gradients are those of the untouched run.

`make test` tries some ops, others each time; `GRADMEND_OPS_SEED=N` repeats a choice. `pytest -m ops` tries them all.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import op_oracle

from gradmend.capture import reads

SOME = 24  # pairs of op and dtype
SURE = ("exp", "max_reduction_with_dim", "nn_functional_batch_norm", "unbind", "gather", "linalg_solve")


def judged(todo: list[op_oracle.Job], samples: int, seed: int) -> tuple[list[op_oracle.Row], list[str]]:
    """All trials, and everything that must not be."""
    rows: list[op_oracle.Row] = []
    wrong: list[str] = []
    for (name, dtype), trials, why in op_oracle.run(todo, samples, seed):
        rows += trials
        if why.startswith(("error", "the process")):
            wrong.append(f"{name} ({dtype}): {why}")
        wrong += [str(t) for t in op_oracle.faults(trials)]
    return rows, wrong


def test_some_ops() -> None:
    seed = int(os.environ.get("GRADMEND_OPS_SEED", random.SystemRandom().randrange(10**6)))
    print(f"GRADMEND_OPS_SEED={seed}")
    todo, _ = op_oracle.jobs()
    rows, wrong = judged(random.Random(seed).sample(todo, SOME), 1, seed)
    assert not wrong, f"GRADMEND_OPS_SEED={seed}\n" + "\n".join(wrong)
    assert len(rows) > SOME


def test_the_ops_that_differ_most() -> None:
    todo, _ = op_oracle.jobs(SURE)
    rows, wrong = judged([job for job in todo if job[1] is torch.float64], 1, 0)
    assert not wrong, "\n".join(wrong)
    assert {r["op"] for r in rows} == set(SURE)
    seen = {(r["plain"], r["watch"]) for r in rows}
    # Refused and harmful, refused but right, silently wrong, and harmless: the oracle tells all four apart.
    assert seen >= {("raises", "raises"), ("raises", "runs"), ("silently wrong", "raises"), ("right", "runs")}


@pytest.mark.parametrize("sabotage", ["reads nothing", "keeps nothing"])
def test_a_broken_ledger_does_not_pass(sabotage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle can fail: with slots called unread, or old bytes thrown away, it says so."""
    if sabotage == "reads nothing":
        monkeypatch.setattr(reads, "is_read", lambda *a, **k: False)
    else:
        from gradmend.heal.undo import UndoLog

        monkeypatch.setattr(UndoLog, "add", lambda self, record: None)
    todo, _ = op_oracle.jobs(["exp"])
    rows, wrong = judged(todo, 1, 0)
    assert rows
    assert wrong


@pytest.mark.ops
def test_every_op() -> None:
    todo, skipped = op_oracle.jobs()
    rows, wrong = judged(todo, int(os.environ.get("GRADMEND_OPS_SAMPLES", "1")), 0)
    assert not wrong, f"{len(wrong)} of {len(rows)}:\n" + "\n".join(wrong[:50])
    assert len({r["op"] for r in rows}) > 500
    assert all(names for names in skipped.values())
