"""torchrun with DDP's options, FSDP2 and distributed checkpoints: a right program ends with the same weights, a broken one
is told by every rank and healed to the weights of the right one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or sys.platform == "win32", reason="needs gloo"
)
PROGRAM = Path(__file__).with_name("ranks_training.py")


def launch(*words: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """What was printed, and the line of each rank."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    done = subprocess.run([*command, *words], capture_output=True, text=True, env=env, timeout=600)
    return done, sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))


def healed(out: Path, *words: str) -> tuple[str, list[str]]:
    report = str(out / "out.json")
    done, lines = launch("-m", "gradmend", "run", "--heal", "--report", report, str(PROGRAM), *words)
    return done.stderr, lines


def culprits(out: Path) -> list[set[int]]:
    sessions = [json.loads((out / f"out.rank{r}.json").read_text()) for r in (0, 1)]
    return [
        {c["culprits"][0]["line"] for c in s["conflicts"] if c["kind"] != "refused-but-right"}
        for s in sessions
    ]


@pytest.mark.slow
def test_the_same_weights_and_the_right_line(tmp_path: Path) -> None:
    done, right = launch(str(PROGRAM))
    assert len(right) == 10, done.stderr
    told, lines = healed(tmp_path)
    assert lines == right, told
    assert culprits(tmp_path) == [set(), set()]
    told, lines = healed(tmp_path, "broken")
    assert lines == right, told
    line = PROGRAM.read_text().splitlines().index("            h += 1") + 1
    assert culprits(tmp_path) == [{line}, {line}]
