"""Each Python block of the sparse pages runs as it stands."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from torch import distributed as dist

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
BLOCKS = {page.stem: BLOCK.findall(page.read_text()) for page in sorted(DOCS.glob("sparse*.md"))}
ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def test_the_pages_have_examples() -> None:
    assert {page for page, blocks in BLOCKS.items() if blocks} >= {
        "sparse", "sparse-layers", "sparse-optimizers", "sparse-distributed"
    }  # fmt: skip


@pytest.mark.parametrize("page", [page for page, blocks in BLOCKS.items() if blocks])
def test_every_block_runs_alone(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if page == "sparse-distributed" and not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("no gloo here")
    for name, value in ONE_RANK.items():
        monkeypatch.setenv(name, value)
    if sys.platform == "linux":
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    try:
        for block in BLOCKS[page]:
            exec(block, {"__name__": "__main__"})  # names of its own: it must import what it uses
    finally:
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()
