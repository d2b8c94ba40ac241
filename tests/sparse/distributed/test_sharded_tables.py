"""Tables over the rows of many ranks, by torchrun on gloo, against whole ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from test_sparse_ranks import environment, last_words

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("no gloo here", allow_module_level=True)

WORKER = Path(__file__).with_name("tables_worker.py")
CHECKS = re.findall(r"^@check\ndef (\w+)", WORKER.read_text(), re.M)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@cache
def told(folder: Path, ranks: int) -> list[dict[str, str]]:
    place = folder / str(ranks)
    place.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*command, str(WORKER), str(place), "cpu"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    found = sorted(place.glob("*.json"))
    assert done.returncode == 0 and len(found) == ranks, last_words(done)
    return [json.loads(p.read_text()) for p in found]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("check", CHECKS)
def test_sharded_tables_equal_whole_ones(folder: Path, ranks: int, check: str) -> None:
    for rank, said in enumerate(told(folder, ranks)):
        assert said[check] == "ok", f"rank {rank}: {said[check]}"
