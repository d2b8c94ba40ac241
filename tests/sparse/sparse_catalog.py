"""The 106 everyday operations, written once in torch's words: for our tensors, torch's layouts and dense ones.

Each takes a `World` of operands. `dense` says what the result is when the operands are dense, where the same
words don't (softmax over stored entries, torch.sparse.* on strided tensors).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

N = 8


@dataclass
class World:
    A: Any  # sparse 8 x 8, a full diagonal
    B: Any  # sparse 8 x 8, other places
    X: Tensor  # 8 x 3
    Y: Tensor  # 5 x 8
    C: Tensor  # 8 x 3
    F: Tensor  # 8 x 8, no zeros
    W: Tensor  # 3 x 8
    x: Tensor  # 8
    t0: Tensor  # a number
    col: Tensor  # 8 x 1
    row: Tensor  # 1 x 8
    stored: Tensor  # bool, A's places
    other: Tensor  # bool, B's places


@dataclass(frozen=True)
class Op:
    name: str
    run: Callable[[World], Any]
    dense: Callable[[World], Any] | None = None
    raises: bool = False  # dense in every entry: one clear sentence
    grad: bool = True

    def oracle(self, w: World) -> Any:
        return (self.dense or self.run)(w)


IX = torch.tensor([6, 0, 0, 3])
MASK = torch.tensor([True, False, True, True, False, False, True, False])


def _softmax(log: bool, dim: int) -> Callable[[World], Tensor]:
    def oracle(w: World) -> Tensor:
        hidden = w.A.masked_fill(~w.stored, -torch.inf)
        made = (torch.log_softmax if log else torch.softmax)(hidden, dim)
        return torch.where(w.stored, made, torch.zeros_like(made))

    return oracle


def _mean_messages(w: World) -> Tensor:
    return (w.A @ w.X) / w.stored.sum(1, keepdim=True).clamp(min=1)


def _max_messages(w: World) -> Tensor:
    sent = w.A[:, :, None] * w.X
    return sent.masked_fill(~w.stored[:, :, None], -torch.inf).amax(1)


def _values(w: World) -> Tensor:
    return w.A[w.stored]


OPS: tuple[Op, ...] = (
    Op("sum()", lambda w: w.A.sum()),
    Op("torch.sparse.sum(A)", lambda w: torch.sparse.sum(w.A), lambda w: w.A.sum()),
    Op("sum(0)", lambda w: w.A.sum(0)),
    Op("sum(1)", lambda w: w.A.sum(1)),
    Op("sum(0,keepdim)", lambda w: w.A.sum(0, keepdim=True)),
    Op("sum(1,keepdim)", lambda w: w.A.sum(1, keepdim=True)),
    Op("torch.sparse.sum(A,0)", lambda w: torch.sparse.sum(w.A, 0), lambda w: w.A.sum(0)),
    Op("torch.sparse.sum(A,1)", lambda w: torch.sparse.sum(w.A, 1), lambda w: w.A.sum(1)),
    Op("mean()", lambda w: w.A.mean()),
    Op("A@X (S@D)", lambda w: w.A @ w.X),
    Op("torch.mm S@D", lambda w: torch.mm(w.A, w.X)),
    Op("torch.sparse.mm S@D", lambda w: torch.sparse.mm(w.A, w.X), lambda w: w.A @ w.X),
    Op("A@x (S@vec)", lambda w: w.A @ w.x),
    Op("Y@A (D@S)", lambda w: w.Y @ w.A),
    Op("F.linear(x,A)", lambda w: F.linear(w.Y, w.A)),
    Op("A@B (S@S)", lambda w: w.A @ w.B),
    Op("torch.sparse.mm S@S", lambda w: torch.sparse.mm(w.A, w.B), lambda w: w.A @ w.B),
    Op("addmm(C,A,X)", lambda w: torch.addmm(w.C, w.A, w.X)),
    Op(
        "sparse.addmm(C,A,X)",
        lambda w: torch.sparse.addmm(w.C, w.A, w.X),
        lambda w: torch.addmm(w.C, w.A, w.X),
    ),
    Op("mm reduce=sum", lambda w: torch.sparse.mm(w.A, w.X, "sum"), lambda w: w.A @ w.X),
    Op("mm reduce=mean", lambda w: torch.sparse.mm(w.A, w.X, "mean"), _mean_messages),
    Op("mm reduce=amax", lambda w: torch.sparse.mm(w.A, w.X, "amax"), _max_messages),
    Op("A+A2 (S+S)", lambda w: w.A + w.B),
    Op("A+F (S+D)", lambda w: w.A + w.F),
    Op("F+A (D+S)", lambda w: w.F + w.A),
    Op("A+2.0", lambda w: w.A + 2.0, raises=True),
    Op("A-B", lambda w: w.A - w.B),
    Op("A*2", lambda w: w.A * 2),
    Op("A/2", lambda w: w.A / 2),
    Op("A*t0 (0-dim tensor)", lambda w: w.A * w.t0),
    Op("A/t0 (0-dim tensor)", lambda w: w.A / w.t0),
    Op("A*F (S*D)", lambda w: w.A * w.F),
    Op("F*A (D*S)", lambda w: w.F * w.A),
    Op("A*col (S*D bcast Nx1)", lambda w: w.A * w.col),
    Op("A*row (S*D bcast 1xM)", lambda w: w.A * w.row),
    Op("A/F (S/D)", lambda w: w.A / w.F),
    Op("A*B (S*S)", lambda w: w.A * w.B),
    Op("neg", lambda w: -w.A),
    Op("relu", lambda w: torch.relu(w.A)),
    Op("abs", lambda w: w.A.abs()),
    Op("pow(2)", lambda w: w.A.pow(2)),
    Op("A*A", lambda w: w.A * w.A),
    Op("square", lambda w: torch.square(w.A)),
    # The root of the dense zeros has no gradient, so the oracle takes it at the stored entries.
    Op(
        "sqrt(abs)",
        lambda w: torch.sqrt(torch.abs(w.A)),
        lambda w: torch.where(w.stored, torch.where(w.stored, w.A, 1.0).abs().sqrt(), 0.0),
    ),
    Op("tanh", lambda w: torch.tanh(w.A)),
    Op("sin", lambda w: torch.sin(w.A)),
    Op("expm1", lambda w: torch.expm1(w.A)),
    Op("log1p(abs)", lambda w: torch.log1p(torch.abs(w.A))),
    Op("exp", lambda w: torch.exp(w.A), raises=True),
    Op("sigmoid", lambda w: torch.sigmoid(w.A), raises=True),
    Op("clamp(-.5,.5)", lambda w: torch.clamp(w.A, -0.5, 0.5)),
    Op("F.leaky_relu", lambda w: F.leaky_relu(w.A)),
    Op("F.gelu", lambda w: F.gelu(w.A)),
    Op("F.dropout(p=0 train)", lambda w: F.dropout(w.A, 0.0, True)),
    Op("sparse.softmax(1)", lambda w: torch.sparse.softmax(w.A, 1), _softmax(False, 1)),
    Op("sparse.log_softmax(1)", lambda w: torch.sparse.log_softmax(w.A, 1), _softmax(True, 1)),
    Op("sparse.softmax(0)", lambda w: torch.sparse.softmax(w.A, 0), _softmax(False, 0)),
    Op("t()", lambda w: w.A.t()),
    Op("t()@C", lambda w: w.A.t() @ w.C),
    Op("transpose(0,1)", lambda w: w.A.transpose(0, 1)),
    Op("permute(1,0)", lambda w: w.A.permute(1, 0)),
    Op("index_select(0)", lambda w: torch.index_select(w.A, 0, IX)),
    Op("index_select(1)", lambda w: torch.index_select(w.A, 1, IX)),
    Op("A[2] (row)", lambda w: w.A[2]),
    Op("A[1:5] (slice)", lambda w: w.A[1:5]),
    Op("A[ix] (adv idx)", lambda w: w.A[IX]),
    Op("A[mask]", lambda w: w.A[MASK]),
    Op("narrow", lambda w: w.A.narrow(0, 1, 4)),
    Op("narrow_copy", lambda w: w.A.narrow_copy(0, 1, 4), lambda w: w.A.narrow(0, 1, 4)),
    Op("select(0,2)", lambda w: w.A.select(0, 2)),
    Op("cat(0)", lambda w: torch.cat([w.A, w.B], 0)),
    Op("cat(1)", lambda w: torch.cat([w.A, w.B], 1)),
    Op("stack", lambda w: torch.stack([w.A, w.B])),
    Op("vstack", lambda w: torch.vstack([w.A, w.B])),
    Op("reshape(4,16)", lambda w: w.A.reshape(4, 16)),
    Op("view(4,16)", lambda w: w.A.view(4, 16)),
    Op("unsqueeze(0)", lambda w: w.A.unsqueeze(0)),
    Op("coalesce", lambda w: w.A.coalesce(), lambda w: w.A),
    Op("to_dense", lambda w: w.A.to_dense()),
    Op("to_sparse_csr", lambda w: w.A.to_sparse_csr(), lambda w: w.A),
    Op("to_sparse_coo", lambda w: w.A.to_sparse_coo(), lambda w: w.A),
    Op("to_sparse_csc", lambda w: w.A.to_sparse_csc(), lambda w: w.A),
    Op("clone", lambda w: w.A.clone()),
    Op("to(float32)", lambda w: w.A.to(torch.float32)),
    Op("values()", lambda w: w.A.values(), _values),
    Op("F.sparse_mask(A)", lambda w: w.F.sparse_mask(w.A), lambda w: torch.where(w.stored, w.F, 0.0)),
    Op("A.sparse_mask(B)", lambda w: w.A.sparse_mask(w.B), lambda w: torch.where(w.other, w.A, 0.0)),
    Op(
        "sampled_addmm(A,C,Y)",
        lambda w: torch.sparse.sampled_addmm(w.A, w.C, w.W),
        lambda w: w.A + torch.where(w.stored, w.C @ w.W, 0.0),
    ),
    Op("norm()", lambda w: w.A.norm()),
    Op("norm(1)", lambda w: w.A.norm(1)),
    Op("norm(inf)", lambda w: w.A.norm(torch.inf)),
    Op("linalg.norm", lambda w: torch.linalg.norm(w.A)),
    Op("linalg.vector_norm", lambda w: torch.linalg.vector_norm(w.A)),
    Op("max()", lambda w: w.A.max()),
    Op("amax(1)", lambda w: w.A.amax(1)),
    Op("min()", lambda w: w.A.min()),
    Op("max(1)", lambda w: w.A.max(1)[0]),
    Op("prod(1)", lambda w: w.A.prod(1)),
    Op("trace/diag", lambda w: torch.trace(w.A)),
    Op("where(A!=0)", lambda w: torch.where(w.A != 0, w.A, torch.zeros_like(w.A))),
    Op("spsolve(A,b)", lambda w: torch.sparse.spsolve(w.A, w.x), lambda w: torch.linalg.solve(w.A, w.x)),
    Op("zeros_like", lambda w: torch.zeros_like(w.A), grad=False),
    Op("isnan(nograd)", lambda w: torch.isnan(w.A), grad=False),
    Op("unbind", lambda w: torch.unbind(w.A)),
    Op("kron", lambda w: torch.kron(w.A, w.B)),
    Op("masked einsum ij,jk", lambda w: torch.einsum("ij,jk->ik", w.A, w.X)),
)
assert len(OPS) == 106


def dense_of(out: Any) -> Tensor:
    """Whatever an operation returned, as one dense tensor."""
    if isinstance(out, tuple | list):
        return torch.stack([dense_of(o) for o in out])
    return out if isinstance(out, Tensor) and out.layout == torch.strided else out.to_dense()


def places(seed: int = 0) -> tuple[Tensor, Tensor]:
    """A's and B's places: a diagonal and some more; one row of A is full, some of B are empty."""
    g = torch.Generator().manual_seed(seed)
    a = torch.rand(N, N, generator=g) < 0.25
    a |= torch.eye(N, dtype=torch.bool)
    a[3] = True
    b = torch.rand(N, N, generator=g) < 0.25
    b[5] = False
    return a, b


def numbers(a: Tensor, b: Tensor, dtype: torch.dtype = torch.float64, seed: int = 1) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        made = torch.randn(*shape, generator=g, dtype=torch.float64)
        # Away from zero: kinks of abs, relu and clamp are nobody's gradient.
        return (made + made.sign() * 0.1).to(dtype)

    return {
        "a": draw(int(a.sum())),
        "b": draw(int(b.sum())),
        "X": draw(N, 3),
        "Y": draw(5, N),
        "C": draw(N, 3),
        "F": draw(N, N),
        "W": draw(3, N),
        "x": draw(N),
        "t0": draw(1)[0].clone(),
        "col": draw(N, 1),
        "row": draw(1, N),
    }


def world(build: Callable[[Tensor, Tensor], Any], a: Tensor, b: Tensor, n: dict[str, Tensor]) -> World:
    rest = {k: v for k, v in n.items() if k not in ("a", "b")}
    return World(A=build(a, n["a"]), B=build(b, n["b"]), stored=a, other=b, **rest)


def build_dense(mask: Tensor, values: Tensor) -> Tensor:
    return values.new_zeros(mask.shape).index_put(tuple(mask.nonzero().t()), values)
