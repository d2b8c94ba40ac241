"""A table of 100 million rows costs what is touched of it: in a child, whose memory at its most is told."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

_CHILD = """
import re, sys
import numpy as np, torch
from torch import nn
from gradmend.sparse.nn import SparseEmbedding
from gradmend.sparse import optim

# Pages (of 2 MB, it may be) that nobody writes take no memory: a pass over the table, or moments for all of it, would.
values = torch.from_numpy(np.zeros((100_000_000, 16), np.float32))
table = SparseEmbedding(*values.shape, _weight=values)
optimizer = getattr(optim, sys.argv[1])(table.parameters(), lr=0.1)
ids = torch.randint(0, 100_000_000, (100,), generator=torch.Generator().manual_seed(0))
twin = nn.Parameter(torch.zeros(100, 16))  # the rows of ids, none of them twice
assert ids.unique().numel() == ids.numel()
dense = getattr(torch.optim, sys.argv[1].removeprefix("Row"))([twin], lr=0.1)
for _ in range(4):
    for parameters, step in ((table(ids), optimizer), (twin, dense)):
        step.zero_grad()
        (parameters - 1).square().sum().backward()
        step.step()
assert torch.allclose(table(ids), twin) and not torch.equal(twin, torch.zeros_like(twin))
# Of this program alone: ru_maxrss counts what its parent had when it forked.
print(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc, and pages that come when they are written")
@pytest.mark.parametrize("optimizer", ["RowSGD", "RowAdagrad", "RowAdam", "RowAdamW"])
def test_a_hundred_million_rows(optimizer: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_CHILD), optimizer], capture_output=True, text=True
    )
    if "MemoryError" in done.stderr:
        pytest.skip("this machine gives no 6.4 GB of addresses")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2**20 * 1.5  # the table alone has 6.4 GB
