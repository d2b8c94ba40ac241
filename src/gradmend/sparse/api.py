"""Puts every registered operation on SparseTensor, and every constructor beside it."""

from __future__ import annotations

import torch

from gradmend.sparse import clipping, dynamo, tree
from gradmend.sparse.boundary import guarded
from gradmend.sparse.dispatch import METHODS, Op
from gradmend.sparse.interop import compressed, coo, graph, layouts, scipy
from gradmend.sparse.interop import dense as from_dense
from gradmend.sparse.ops import derivative
from gradmend.sparse.ops.conversions import convert, dense, layout
from gradmend.sparse.ops.elementwise import binary, compare, losses, unary
from gradmend.sparse.ops.products import einsum, matmul, message, sampled, solve, spspmm
from gradmend.sparse.ops.reductions import extremes, norm, reduce, scan, softmax
from gradmend.sparse.ops.structure import diagonal, index, join, repeat, select, shape
from gradmend.sparse.pattern import Pattern, _restore
from gradmend.sparse.tensor import SparseTensor, load

# Importing a module registers its operations.
OPERATIONS = (
    *(convert, dense, layout, derivative),
    *(binary, compare, losses, unary),
    *(einsum, matmul, message, sampled, solve, spspmm),
    *(extremes, norm, reduce, scan, softmax),
    *(diagonal, index, join, repeat, select, shape),
)
CONSTRUCTORS: dict[str, Op] = {
    "from_coo": coo.from_coo,
    "from_csr": compressed.from_csr,
    "from_csc": compressed.from_csc,
    "from_bsr": compressed.from_bsr,
    "from_dense": from_dense.from_dense,
    "from_lists": from_dense.from_lists,
    "from_torch": layouts.from_torch,
    "from_scipy": scipy.from_scipy,
    "from_edge_index": graph.from_edge_index,
}


def attach() -> None:
    for name, op in METHODS.items():
        if name not in SparseTensor.__dict__ or name in ("__eq__", "__ne__"):
            setattr(SparseTensor, name, guarded(f"S.{name}", op))
    for name, make in CONSTRUCTORS.items():
        setattr(SparseTensor, name, staticmethod(guarded(f"SparseTensor.{name}", make)))
    # For torch.load(weights_only=True): what these make of a file they check.
    torch.serialization.add_safe_globals([SparseTensor, Pattern, load, _restore])
    dynamo.install()
    clipping.install()
    tree.register()
