"""Where nothing can be compiled, torch's own ops serve."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("off", [{"NUMBA_DISABLE_JIT": "1"}, {"GRADMEND_NUMBA": "0"}], ids=str)
def test_without_a_compiler_torchs_ops_serve(off: dict[str, str]) -> None:
    program = """
import torch
from gradmend.sparse import Pattern, SparseTensor
from gradmend.sparse.kernels.gate import available

assert not available()
p = Pattern.random((500, 400), density=0.1)
S = SparseTensor(p, torch.randn(p.nnz, dtype=torch.float64, requires_grad=True))
X = torch.randn(400, 32, dtype=torch.float64)
torch.testing.assert_close(S @ X, S.to_dense() @ X)
(S @ X).sum().backward()
torch.testing.assert_close(S.grad.values(), X.sum(1)[p.col])
torch.testing.assert_close((S @ S.t()).to_dense(), S.to_dense() @ S.to_dense().t())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **off},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
