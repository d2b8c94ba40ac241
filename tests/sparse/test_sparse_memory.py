"""10,000,000 x 10,000,000 with 1,000 entries: no op takes more than 64 MB beyond what it must return."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sparse_catalog import OPS as CATALOG
from sparse_catalog import World
from torch import Tensor

from gradmend.sparse import Pattern, SparseError, SparseTensor

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")

N, NNZ, LIMIT = 10_000_000, 1_000, 64 << 20
PATTERN = Pattern.random((N, N), nnz=NNZ, generator=torch.Generator().manual_seed(0))
OTHER = Pattern.random((N, N), nnz=NNZ, generator=torch.Generator().manual_seed(1)) | Pattern(
    PATTERN.indices()[:, ::3], PATTERN.size
)
INDEX = torch.randint(N, (50,), generator=torch.Generator().manual_seed(2))
INDEX[:5] = PATTERN.row[:5]
ROW, ROW2 = int(PATTERN.row[0]), int(PATTERN.row[NNZ // 2])
SMALL = Pattern([[0, 1], [1, 0]], (2, 2))
# Drawn once: for most operations that takes longer than the operation.
WIDE, LONG = torch.randn(N, 1, dtype=torch.float64), torch.rand(N, dtype=torch.float64).add_(1)

# Beside the 106 operations, which are added below.
UNARY = (F.elu, F.silu, lambda S: S.map(torch.exp))


def mask(*rows: int) -> Tensor:
    made = torch.zeros(N, dtype=torch.bool)
    made[list(rows)] = True
    return made


SOME, MOST = mask(ROW, ROW2, 7), ~mask(ROW)  # inputs, as X and x are

# With A, B sparse and v, X [N, 1], x [N] dense; dense results and gradients of that size are what it must return.
OPS: dict[str, Callable[..., Any]] = {
    **{f"unary {i}": (lambda A, B, X, x, f=f: f(A)) for i, f in enumerate(UNARY)},
    "sum(0)": lambda A, B, X, x: A.sum(0),
    "sum(1, keepdim)": lambda A, B, X, x: torch.sum(A, 1, keepdim=True),
    "mean(0)": lambda A, B, X, x: A.mean(0),
    "prod(1)": lambda A, B, X, x: A.prod(1),
    "amax(0)": lambda A, B, X, x: A.amax(0),
    "amin(1)": lambda A, B, X, x: A.amin(1),
    "max(1)": lambda A, B, X, x: tuple(A.max(1)),
    "argmin(0)": lambda A, B, X, x: A.argmin(0),
    "argmax": lambda A, B, X, x: A.argmax(),
    "any(1)": lambda A, B, X, x: A.any(1),
    "all(0)": lambda A, B, X, x: A.all(0),
    "norm(3, 0)": lambda A, B, X, x: A.norm(3, 0),
    "norm(inf, 1)": lambda A, B, X, x: A.norm(torch.inf, 1),
    "linalg.norm(1)": lambda A, B, X, x: torch.linalg.matrix_norm(A, torch.inf),
    "logsumexp(1)": lambda A, B, X, x: A.logsumexp(1),
    "var(0)": lambda A, B, X, x: A.var(0),
    "std": lambda A, B, X, x: A.std(),
    "softmax(1)": lambda A, B, X, x: torch.sparse.softmax(A, 1),
    "log_softmax(0)": lambda A, B, X, x: torch.sparse.log_softmax(A, 0),
    "propagate min": lambda A, B, X, x: A.propagate(x, "min"),
    "einsum ij,i,j->": lambda A, B, X, x: torch.einsum("ij,i,j->", A, X.squeeze(1), x),
    "einsum ij,j->ij": lambda A, B, X, x: torch.einsum("ij,j->ij", A, x),
    "A / col": lambda A, B, X, x: A / X,
    "maximum": lambda A, B, X, x: torch.maximum(A, B),
    "where": lambda A, B, X, x: torch.where(B != 0, A, B),
    "masked_fill": lambda A, B, X, x: A.masked_fill(B > 0, 0.0),
    "reshape": lambda A, B, X, x: A.reshape(N // 4, N * 4),
    "flatten": lambda A, B, X, x: A.flatten(),
    "stack sum": lambda A, B, X, x: torch.stack([A, B]).sum(0),
    "flip": lambda A, B, X, x: A.flip(0),
    "index_select(0)": lambda A, B, X, x: A.index_select(0, INDEX),
    "index_select(1)": lambda A, B, X, x: A.index_select(1, INDEX),
    "A[row]": lambda A, B, X, x: A[ROW],
    "A[:, 3]": lambda A, B, X, x: A[:, 3],
    "A[slice]": lambda A, B, X, x: A[ROW : N - 3],
    "A[::2]": lambda A, B, X, x: A[::2],
    "A[ix]": lambda A, B, X, x: A[INDEX],
    "A[mask]": lambda A, B, X, x: A[SOME],
    "A[~mask]": lambda A, B, X, x: A[MOST],
    "A[sparse mask]": lambda A, B, X, x: A[B != 0],
    "A[i, j]": lambda A, B, X, x: A[PATTERN.row[:7], PATTERN.col[:7]],
    "narrow": lambda A, B, X, x: A.narrow(0, 5, N // 2),
    "select": lambda A, B, X, x: A.select(1, 9),
    "unbind": lambda A, B, X, x: A.unbind()[ROW],
    "chunk": lambda A, B, X, x: A.chunk(3)[1],
    "cat(0)": lambda A, B, X, x: torch.cat([A, B], 0),
    "cat(1)": lambda A, B, X, x: torch.cat([A, B], 1),
    "block_diag": lambda A, B, X, x: torch.block_diag(A, B),
    "kron": lambda A, B, X, x: torch.kron(A, SparseTensor(SMALL, A.values()[:2])),
    "diagonal": lambda A, B, X, x: A.diagonal(),
    "tril": lambda A, B, X, x: A.tril(),
    "triu": lambda A, B, X, x: A.triu(3),
    "sparse_mask": lambda A, B, X, x: A.sparse_mask(B),
    "view": lambda A, B, X, x: A.view(N * 4, N // 4),
    # Solved on the occupied block: a matrix of this size with so few entries has no inverse.
    "spsolve": lambda A, B, X, x: torch.sparse.spsolve(
        SparseTensor(Pattern([range(NNZ)] * 2, (NNZ, NNZ)), A.values().abs() + 1), x[:NNZ]
    ),
    # Row pointers are part of what these return; torch's own second derivative of them is dense.
    "to_sparse_csr": lambda A, B, X, x: A.detach().to_sparse_csr(),
    "to_sparse_csc": lambda A, B, X, x: A.detach().to_sparse_csc(),
    "solve_triangular": lambda A, B, X, x: torch.linalg.solve_triangular(
        A, X, upper=True, unitriangular=True
    ),
}


def huge(A: Any, B: Any, X: Tensor, x: Tensor) -> World:
    """The operands of the 106 operations at this size; a dense one of rows x columns there is none."""
    nothing: Any = None
    return World(A, B, X, X.t(), x[:, None], nothing, X.t(), x, x[0], X, x[None], nothing, nothing)


# Of the 106: those with an operand or a result of rows x columns, and those whose words are of 8 rows.
DENSE = {
    *("A+F (S+D)", "F+A (D+S)", "A*F (S*D)", "F*A (D*S)", "A/F (S/D)", "F.sparse_mask(A)", "to_dense"),
    *(op.name for op in CATALOG if op.raises),
}
INSTEAD = {
    "A[mask]": "A[mask]",
    "reshape(4,16)": "reshape",
    "view(4,16)": "view",
    "kron": "kron",
    "unbind": "unbind",
    "spsolve(A,b)": "spsolve",
    "to_sparse_csr": "to_sparse_csr",
    "to_sparse_csc": "to_sparse_csc",
}
OPS |= {
    op.name: (lambda A, B, X, x, op=op: op.run(huge(A, B, X, x)))
    for op in CATALOG
    if op.name not in DENSE and op.name not in INSTEAD and op.name not in OPS
}


def test_each_of_the_106_is_measured() -> None:
    for op in CATALOG:
        assert op.name in OPS or op.name in DENSE or INSTEAD[op.name] in OPS, op.name


@pytest.fixture(scope="module", autouse=True)
def _settled() -> Iterator[None]:
    """What is there already is no garbage: to look through it for each operation takes longer than the operation."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def resident(field: str = "VmRSS") -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise AssertionError(field)


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def tensors(out: Any) -> list[Tensor]:
    """Dense parts of a result."""
    if isinstance(out, tuple):
        return [t for o in out for t in tensors(o)]
    if isinstance(out, SparseTensor):
        return [out.values()]
    if out.layout == torch.sparse_coo:
        return [out.coalesce().values()]
    if out.layout == torch.sparse_csr:
        return [out.crow_indices(), out.col_indices(), out.values()]
    if out.layout == torch.sparse_csc:
        return [out.ccol_indices(), out.row_indices(), out.values()]
    return [out]


def nbytes(found: Any) -> int:
    return sum(t.numel() * t.element_size() for t in found if t is not None)


@pytest.mark.parametrize("name", OPS)
def test_memory_beyond_what_must_be_returned(name: str) -> None:
    a = torch.randn(NNZ, dtype=torch.float64, requires_grad=True)
    b = torch.randn(OTHER.nnz, dtype=torch.float64, requires_grad=True)
    X, x = WIDE.detach().requires_grad_(), LONG.detach().requires_grad_()
    ins = [a, b, X, x]
    # A fresh pattern: what it caches counts as well.
    fresh = Pattern.sorted(PATTERN.indices().clone(), PATTERN.size)
    gc.collect()
    reset_peak()
    before = resident()
    out = OPS[name](SparseTensor(fresh, a), SparseTensor(OTHER, b), X, x)
    outs = tensors(out)
    must = nbytes(outs)
    _within(name, "forward", before, must)
    outs = [t for t in outs if t.requires_grad]
    if not outs:
        return
    u = [torch.ones_like(t).requires_grad_() for t in outs]
    must += nbytes(u)
    first = torch.autograd.grad(outs, ins, u, create_graph=True, allow_unused=True)
    must += nbytes(first)
    _within(name, "backward", before, must)
    live = [g for g in first if g is not None and g.requires_grad]
    if not live:
        return
    ones = [torch.ones((), dtype=g.dtype).expand(g.shape) for g in live]
    second = torch.autograd.grad(live, [*ins, *u], ones, allow_unused=True)
    must += nbytes(second)
    if name == "solve_triangular":
        # The first gradient reads the solution, so the second one passes through a gradient of it.
        must += nbytes(outs)
    _within(name, "double backward", before, must)


def _within(name: str, phase: str, before: int, must: int) -> None:
    extra = resident("VmHWM") - before - must
    assert extra <= LIMIT, f"{name}: {phase} took {extra / 2**20:.0f} MB more than it returned"


def test_a_shape_beyond_int64_is_one_sentence() -> None:
    S = SparseTensor(PATTERN, torch.ones(NNZ))
    with pytest.raises(
        SparseError, match=r"kron would have the shape 100000000000000 x 100000000000000.*int64"
    ):
        torch.kron(S, S)
