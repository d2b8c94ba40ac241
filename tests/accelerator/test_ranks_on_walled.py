"""Sharded tables under a process group that sends tensors of the device and nothing else, as "nccl" does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from conftest import ROOT, Child

WORKER = ROOT / "tests" / "sparse" / "distributed" / "tables_worker.py"


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="no gloo here")
def test_two_ranks_on_the_device(child: Child, tmp_path: Path) -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = child(
        *command, str(WORKER), str(tmp_path), "walled", MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo"
    )
    found = [json.loads(p.read_text()) for p in sorted(tmp_path.glob("*.json"))]
    assert done.returncode == 0 and len(found) == 2, done.stderr[-4000:]
    for rank, said in enumerate(found):
        assert len(said) >= 8
        for check, how in said.items():
            assert how == "ok", f"rank {rank}, {check}: {how}"
