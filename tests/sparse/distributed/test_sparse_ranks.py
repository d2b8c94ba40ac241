"""Two and four real processes, by torchrun on gloo, against one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("no gloo here", allow_module_level=True)

WORKER = Path(__file__).with_name("sparse_ranks_worker.py")
CHECKS = re.findall(r"^@check\ndef (\w+)", WORKER.read_text(), re.M)
DEATH = re.compile(r"terminate|what\(\)|Fatal|Aborted|Error:|^\s*(?:Current thread|Thread|File) ")
# A checkpoint by 2 is loaded by 4; those by 4 and by the two of which one died are loaded by 2.
RUNS = {"two": (2, "all,die"), "four": (4, "all,load:by-2"), "again": (2, "load:by-4,load:killed")}
AFTER = {"four": "two", "again": "four", "one": "four"}


def environment(**more: str) -> dict[str, str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "GRADMEND_NUMBA": "0", **more}
    env["PYTHONFAULTHANDLER"] = "1"  # a rank that ends by a signal says where
    if sys.platform == "linux":
        env["GLOO_SOCKET_IFNAME"] = "lo"
    return env


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """What a rank said when it died, before all that torchrun says of it afterwards."""
    lines = (done.stdout + done.stderr).splitlines()
    return "\n".join([*(one for one in lines if DEATH.search(one)), "...", *lines[-60:]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@cache
def run(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    """Each once: to start a rank costs more than what it then does."""
    if name in AFTER:
        run(folder, AFTER[name])
    if name == "one":
        command, task = [sys.executable], "load:by-4"
        env = environment(RANK="0", WORLD_SIZE="1", MASTER_PORT="0")
    else:
        ranks, task = RUNS[name]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        env = environment()
    return subprocess.run(
        [*command, str(WORKER), str(folder), task, name],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def told(folder: Path, name: str, ranks: int) -> list[dict[str, str]]:
    done = run(folder, name)
    found = sorted(folder.glob(f"{name}-*.json"))
    assert (done.returncode == 0) == (name != "two") and len(found) == ranks, last_words(done)
    return [json.loads(p.read_text()) for p in found]


@pytest.mark.parametrize("name", ["two", pytest.param("four", marks=pytest.mark.slow)])
@pytest.mark.parametrize("check", CHECKS)
def test_ranks_do_what_one_process_does(folder: Path, name: str, check: str) -> None:
    for rank, said in enumerate(told(folder, name, RUNS[name][0])):
        assert said[check] == "ok", f"rank {rank}: {said[check]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ranks", "saved"), [("four", 4, "by-2"), ("again", 2, "by-4"), ("one", 1, "by-4")]
)
def test_other_numbers_of_ranks_load_a_checkpoint(folder: Path, name: str, ranks: int, saved: str) -> None:
    for rank, said in enumerate(told(folder, name, ranks)):
        assert said[f"load:{saved}"] == "ok", f"rank {rank}: {said[f'load:{saved}']}"


@pytest.mark.slow
def test_a_rank_that_dies_leaves_a_checkpoint_that_loads(folder: Path) -> None:
    assert run(folder, "two").returncode != 0
    assert [p.name for p in (folder / "killed").glob("*") if not p.name.endswith(".partial")] == [
        "step-000000000004"
    ]
    assert (folder / "killed" / "step-000000000006.partial").exists()
    for rank, said in enumerate(told(folder, "again", 2)):
        assert said["load:killed"] == "ok", f"rank {rank}: {said['load:killed']}"


@pytest.mark.slow
@pytest.mark.parametrize(("task", "count"), [("differing", 6), ("alone", 1)])
def test_models_that_differ_are_told_on_every_rank(tmp_path: Path, task: str, count: int) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(WORKER.with_name("models_worker.py")), str(tmp_path), task],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, last_words(done)
    for rank in range(2):
        said = json.loads((tmp_path / f"{rank}.json").read_text())
        assert len(said) == count and set(said.values()) == {"ok"}, (rank, said)
