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


def torchrun(folder: Path, ranks: int, what: str = "all") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "GRADMEND_NUMBA": "0"}
    if sys.platform == "linux":
        env["GLOO_SOCKET_IFNAME"] = "lo"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.run(
        [*command, str(WORKER), str(folder), what],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@cache
def told(folder: Path, ranks: int) -> list[dict[str, str]]:
    done = torchrun(folder, ranks)
    found = sorted(folder.glob(f"all-{ranks}-*.json"))
    assert len(found) == ranks, done.stdout[-3000:] + done.stderr[-3000:]
    return [json.loads(p.read_text()) for p in found]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", CHECKS)
def test_ranks_do_what_one_process_does(folder: Path, ranks: int, name: str) -> None:
    for rank, said in enumerate(told(folder, ranks)):
        assert said[name] == "ok", f"rank {rank}: {said[name]}"


@pytest.mark.slow
@pytest.mark.parametrize(("saved", "loaded"), [(2, 4), (4, 2), (4, 1)])
def test_other_numbers_of_ranks_load_a_checkpoint(folder: Path, saved: int, loaded: int) -> None:
    told(folder, saved)
    done = torchrun(folder, loaded, f"load:by-{saved}")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


@pytest.mark.slow
def test_a_rank_that_dies_leaves_a_checkpoint_that_loads(folder: Path) -> None:
    done = torchrun(folder, 2, "die")
    assert done.returncode != 0
    assert [p.name for p in (folder / "killed").glob("*") if not p.name.endswith(".partial")] == [
        "step-000000000004"
    ]
    assert (folder / "killed" / "step-000000000006.partial").exists()
    again = torchrun(folder, 2, "load:killed")
    assert again.returncode == 0, again.stderr[-3000:]
