"""Sparse tensors one can train through: a fixed pattern, values that are an ordinary tensor.

>>> import torch
>>> from gradmend.sparse import SparseTensor
>>> w = torch.ones(3, requires_grad=True)
>>> S = SparseTensor.from_coo([[0, 1, 1], [2, 0, 2]], w, (2, 3))
>>> S.sum(0).prod().backward()
"""

from gradmend.sparse import api as _api
from gradmend.sparse.errors import DenseResultError, PatternError, SparseError
from gradmend.sparse.functions.diagonal import diag_of, eye
from gradmend.sparse.functions.join import batch, block_diag
from gradmend.sparse.functions.matmul import sddmm_at as sddmm
from gradmend.sparse.functions.solve import cg, solve_triangular, spsolve
from gradmend.sparse.generate import band, full
from gradmend.sparse.patch import patch
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor

_api.attach()

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
    "patch",
    "sddmm",
    "solve_triangular",
    "spsolve",
]
