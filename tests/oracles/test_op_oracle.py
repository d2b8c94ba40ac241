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
import op_table

from gradmend.capture.graph import reads

SOME = 12  # pairs of op and dtype
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
        from gradmend.capture.memory.undo import UndoLog
        from gradmend.capture.native import loading

        if loading.COMPILED:
            pytest.skip("compiled classes can't be sabotaged: GRADMEND_PURE=1 runs this")
        monkeypatch.setattr(UndoLog, "add", lambda self, record: None)
    todo, _ = op_oracle.jobs(["exp"])
    rows, wrong = judged(todo, 1, 0)
    assert rows
    assert wrong


def test_read_without_effect_is_told_from_not_read() -> None:
    """index_fill's index decides where zeros go; of `eigvalsh` nobody uses the eigenvectors, so no eigenvalue is read."""
    todo, _ = op_oracle.jobs(["index_fill", "linalg_eigvalsh", "nextafter"])
    rows, wrong = judged([job for job in todo if job[1] is torch.float64], 1, 0)
    assert not wrong, "\n".join(wrong)
    assert not op_oracle.alarms(rows)
    values = [r for r in rows if r["op"] == "linalg_eigvalsh" and r["target"] == "output 0"]
    assert values and not any(r["used"] or r["watch"] == "raises" for r in values)
    assert any(r["op"] == "index_fill" and r["target"] == "input 1" and r["watch"] == "raises" for r in rows)
    assert any(r["op"] == "nextafter" and r["reads"] for r in rows)


@pytest.mark.ops
def test_every_op() -> None:
    todo, skipped = op_oracle.jobs()
    rows, wrong = judged(todo, int(os.environ.get("GRADMEND_OPS_SAMPLES", "1")), 0)
    assert not wrong, f"{len(wrong)} of {len(rows)}:\n" + "\n".join(wrong[:50])
    assert len({r["op"] for r in rows}) > 500
    assert all(names for names in skipped.values())
    unexplained = {r["note"] for r in op_oracle.alarms(rows)} - set(op_table.REASONS)
    assert not unexplained, (
        f"watch() stops although nothing moves, and op_table.REASONS says not why: {unexplained}"
    )
