"""Sparse tensors one can train through: a fixed pattern, values that are an ordinary tensor.

>>> import torch
>>> from gradmend.sparse import SparseTensor
>>> w = torch.ones(3, requires_grad=True)
>>> S = SparseTensor.from_coo([[0, 1, 1], [2, 0, 2]], w, (2, 3))
>>> S.sum(0).prod().backward()
"""

from gradmend.sparse import api as _api
from gradmend.sparse import generate as _generate
from gradmend.sparse.boundary import guarded as _guarded
from gradmend.sparse.errors import DenseResultError, PatternError, SparseError
from gradmend.sparse.kernels.checks import check_ids
from gradmend.sparse.ops.products import sampled as _sampled
from gradmend.sparse.ops.products import solve as _solve
from gradmend.sparse.ops.structure import diagonal as _diagonal
from gradmend.sparse.ops.structure import join as _join
from gradmend.sparse.patch import patch
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor

band = _guarded("band", _generate.band)
batch = _guarded("batch", _join.batch)
block_diag = _guarded("block_diag", _join.block_diag)
cg = _guarded("cg", _solve.cg)
diag_of = _guarded("diag_of", _diagonal.diag_of)
eye = _guarded("eye", _diagonal.eye)
full = _guarded("full", _generate.full)
sddmm = _guarded("sddmm", _sampled.sddmm)
solve_triangular = _guarded("solve_triangular", _solve.solve_triangular)
spsolve = _guarded("spsolve", _solve.spsolve)
for _one in (band, batch, block_diag, cg, diag_of, eye, full, sddmm, solve_triangular, spsolve):
    _one.__module__ = __name__  # a worker that is spawned gets them by name

_api.attach()

# Reachable after `import gradmend.sparse`; they build on what is above.
from gradmend.sparse import nn, optim  # noqa: E402

__all__ = [
    "DenseResultError",
    "Pattern",
    "PatternError",
    "SparseError",
    "SparseTensor",
    "band",
    "batch",
    "block_diag",
    "cg",
    "check_ids",
    "diag_of",
    "eye",
    "full",
    "nn",
    "optim",
    "patch",
    "sddmm",
    "solve_triangular",
    "spsolve",
]
