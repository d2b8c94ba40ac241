"""Puts every registered operation on SparseTensor, and every constructor beside it."""

from __future__ import annotations

from gradmend.sparse.dispatch import METHODS
from gradmend.sparse.functions import dense, matmul
from gradmend.sparse.interop import coo
from gradmend.sparse.tensor import SparseTensor

OPERATIONS = (dense, matmul)
CONSTRUCTORS = {"from_coo": coo.from_coo}


def attach() -> None:
    for name, op in METHODS.items():
        if name not in SparseTensor.__dict__:
            setattr(SparseTensor, name, op)
    for name, make in CONSTRUCTORS.items():
        setattr(SparseTensor, name, staticmethod(make))
