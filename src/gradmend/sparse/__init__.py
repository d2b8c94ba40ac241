"""Sparse tensors one can train through: a fixed pattern, values that are an ordinary tensor.

>>> import torch
>>> from gradmend.sparse import SparseTensor
>>> w = torch.ones(3, requires_grad=True)
>>> S = SparseTensor.from_coo([[0, 1, 1], [2, 0, 2]], w, (2, 3))
>>> S.sum(0).prod().backward()
"""

from gradmend.sparse import api as _api
from gradmend.sparse.errors import DenseResultError, PatternError, SparseError
from gradmend.sparse.generate import band, full
from gradmend.sparse.ops.products.sampled import sddmm_at as sddmm
from gradmend.sparse.ops.products.solve import cg, solve_triangular, spsolve
from gradmend.sparse.ops.structure.diagonal import diag_of, eye
from gradmend.sparse.ops.structure.join import batch, block_diag
from gradmend.sparse.patch import patch
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor

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
