"""Over random patterns (empty, empty rows, one entry, duplicates, unsorted) every op equals dense, thrice derived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sparse_catalog import dense_of
from torch import Tensor

from gradmend.sparse import Pattern, SparseTensor, block_diag, cg, places

SETTINGS = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


@dataclass
class Case:
    """Places as a user has them, and a source of dense operands."""

    rows: int
    cols: int
    index: Tensor
    other: Tensor
    seed: int
    dtype: torch.dtype

    def draw(self, *shape: int, at: int = 0) -> Tensor:
        g = torch.Generator().manual_seed(self.seed + at)
        made = torch.randn(shape, generator=g, dtype=torch.float64)
        made = made + made.sign() * 0.1
        if self.dtype.is_complex:
            return torch.complex(made, torch.randn(shape, generator=g, dtype=torch.float64))
        return made.to(self.dtype)


@st.composite
def cases(draw: Any, square: bool = False, complex_too: bool = False) -> Case:
    rows = draw(st.integers(1, 6))
    cols = rows if square else draw(st.integers(1, 6))

    def places() -> Tensor:
        n = draw(st.integers(0, 12))
        pairs = draw(
            st.lists(st.tuples(st.integers(0, rows - 1), st.integers(0, cols - 1)), min_size=n, max_size=n)
        )
        return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t()

    dtype = draw(st.sampled_from([torch.float64, torch.complex128])) if complex_too else torch.float64
    return Case(rows, cols, places(), places(), draw(st.integers(0, 10**6)), dtype)


Two = Callable[[Any, Any, "Env"], Any]


@dataclass
class Env:
    """Dense operands, the same for both sides; `live` are those whose gradients are compared."""

    case: Case
    X: Tensor  # cols x 2
    Y: Tensor  # 3 x rows
    full: Tensor  # rows x cols
    row: Tensor  # cols
    col: Tensor  # rows x 1
    stored: Tensor  # bool rows x cols

    @property
    def live(self) -> list[Tensor]:
        return [self.X, self.Y, self.full, self.row, self.col]


def make_env(case: Case) -> Env:
    r, c = case.rows, case.cols
    stored = torch.zeros(r, c, dtype=torch.bool)
    stored[tuple(case.index)] = True
    shapes = [(c, 2), (3, r), (r, c), (c,), (r, 1)]
    made = [case.draw(*s, at=10 + i).requires_grad_() for i, s in enumerate(shapes)]
    return Env(case, *made, stored=stored)


def to_dense(index: Tensor, v: Tensor, size: tuple[int, int]) -> Tensor:
    return v.new_zeros(size).index_put(tuple(index), v, accumulate=True)


def compare(case: Case, ours: Two, theirs: Two, twice: bool = True) -> None:
    size = (case.rows, case.cols)

    def run(build: Any, f: Two) -> tuple[Tensor, list[Tensor]]:
        env = make_env(case)
        a = case.draw(case.index.shape[1], at=1).requires_grad_()
        b = case.draw(case.other.shape[1], at=2).requires_grad_()
        out = dense_of(f(build(case.index, a, size), build(case.other, b, size), env))
        return out, [a, b, *env.live]

    (got, mine), (want, dense) = run(SparseTensor.from_coo, ours), run(to_dense, theirs)
    torch.testing.assert_close(got, want, equal_nan=True)
    if not want.requires_grad:
        assert not got.requires_grad
        return
    weight = (
        case.draw(*want.shape, at=3) if want.is_complex() == case.dtype.is_complex else torch.ones_like(want)
    )

    def loss(out: Tensor) -> Tensor:
        made = (out * weight).sum() + (out * out.conj()).sum() / 2
        return made.real if made.is_complex() else made

    g, h = gradients(loss(got), mine), gradients(loss(want), dense)
    for x, y in zip(g, h, strict=True):
        torch.testing.assert_close(x, y, equal_nan=True)
    if not twice:
        return

    def again(gs: list[Tensor]) -> Tensor:
        made = sum((x * x.conj()).sum() * (i + 1) for i, x in enumerate(gs))
        return made.real if made.is_complex() else made

    if not again(h).requires_grad:
        return
    for x, y in zip(gradients(again(g), mine), gradients(again(h), dense), strict=True):
        torch.testing.assert_close(x, y, equal_nan=True)


def gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    if not out.requires_grad:
        return [torch.zeros_like(i) for i in inputs]
    found = torch.autograd.grad(out, inputs, allow_unused=True, create_graph=True)
    return [torch.zeros_like(i) if g is None else g for g, i in zip(found, inputs, strict=True)]


# One function for both where torch's words are the same.
LINEAR: dict[str, Two] = {
    "S @ X": lambda S, T, e: S @ e.X,
    "S @ x": lambda S, T, e: S @ e.row,
    "Y @ S": lambda S, T, e: e.Y @ S,
    "y @ S": lambda S, T, e: e.col[:, 0] @ S,
    "linear": lambda S, T, e: F.linear(e.row[None], S, e.col[:, 0]),
    "addmm": lambda S, T, e: torch.addmm(e.col, S, e.X, beta=2, alpha=3),
    "S.t() @ Y": lambda S, T, e: S.t() @ e.Y.t(),
    "S @ T.t()": lambda S, T, e: S @ T.t(),
    "einsum batch": lambda S, T, e: torch.einsum("ij,jk->ki", S, e.X),
    "einsum full": lambda S, T, e: torch.einsum("ij,ij,j->i", S, e.full, e.row),
    "einsum scalar": lambda S, T, e: torch.einsum("ij,mi,jk->mk", S, e.Y, e.X),
    "einsum sparse": lambda S, T, e: torch.einsum("ij,j->ij", S, e.row),
    "tensordot": lambda S, T, e: torch.tensordot(S, e.X, 1),
    "tensordot lists": lambda S, T, e: torch.tensordot(e.full, S, [[0, 1], [0, 1]]),
    "S + T": lambda S, T, e: S + T,
    "S - T": lambda S, T, e: S - 2 * T,
    "S + D": lambda S, T, e: S + e.full,
    "D - S": lambda S, T, e: e.full - S,
    "S * T": lambda S, T, e: S * T,
    "S * D": lambda S, T, e: S * e.full,
    "S * row": lambda S, T, e: e.row * S,
    "S * col": lambda S, T, e: S * e.col,
    "S / D": lambda S, T, e: S / e.full,
    "S / 0-d": lambda S, T, e: S / e.row[0],
    "S ** 2": lambda S, T, e: S**2,
    "neg": lambda S, T, e: -S,
    "sum": lambda S, T, e: S.sum(),
    "sum(0)": lambda S, T, e: S.sum(0),
    "sum(1, keepdim)": lambda S, T, e: S.sum(1, keepdim=True),
    "sum(-1)": lambda S, T, e: torch.sum(S, -1),
    "sum((0, 1))": lambda S, T, e: S.sum((0, 1)),
    "mean(0)": lambda S, T, e: S.mean(0),
    "prod(0)": lambda S, T, e: S.prod(0),
    "prod(1)": lambda S, T, e: S.prod(1, keepdim=True),
    "t": lambda S, T, e: S.t(),
    "S[i]": lambda S, T, e: S[-1],
    "S[:, j]": lambda S, T, e: S[:, 0],
    "S[slice]": lambda S, T, e: S[1:, :-1],
    "S[::2]": lambda S, T, e: S[::2, ::3],
    "S[None]": lambda S, T, e: S[None, 0, None],
    "S[ix]": lambda S, T, e: S[[0, -1, 0]],
    "S[:, ix]": lambda S, T, e: S[:, torch.tensor([-1, 0, -1])],
    "S[mask]": lambda S, T, e: S[e.stored.any(1)],
    "S[mask2]": lambda S, T, e: S[~e.stored | (torch.arange(e.case.cols) % 2 == 0)],
    "S[i, j]": lambda S, T, e: S[torch.tensor([0, -1]), torch.tensor([-1, -1])],
    "S[0, 0]": lambda S, T, e: S[0, 0],
    "gather": lambda S, T, e: S.gather(1, torch.zeros(e.case.rows, 2, dtype=torch.int64)),
    "narrow": lambda S, T, e: S.narrow(1, 0, e.case.cols - 1),
    "chunk": lambda S, T, e: S.chunk(2, 1)[0],
    "unbind": lambda S, T, e: S.unbind(1),
    "cat(0)": lambda S, T, e: torch.cat([S, T, S]),
    "cat(1)": lambda S, T, e: torch.cat([S, T], 1),
    "cat dense": lambda S, T, e: torch.cat([S, e.full], 1),
    "stack": lambda S, T, e: torch.stack([S, T], 1),
    "hstack": lambda S, T, e: torch.hstack([S, T]),
    "block_diag": lambda S, T, e: torch.block_diag(S, T),
    "kron": lambda S, T, e: torch.kron(S, T),
    "reshape": lambda S, T, e: S.reshape(-1),
    "reshape 3": lambda S, T, e: S.reshape(e.case.cols, 1, e.case.rows),
    "permute 3": lambda S, T, e: S.unsqueeze(1).permute(2, 0, 1),
    "flip": lambda S, T, e: S.flip(0, 1),
    "diagonal": lambda S, T, e: S.diagonal(),
    "diag(1)": lambda S, T, e: torch.diag(S, 1),
    "trace": lambda S, T, e: torch.trace(S),
    "tril": lambda S, T, e: S.tril(-1),
    "triu": lambda S, T, e: torch.triu(S, 1),
    "where": lambda S, T, e: torch.where(e.stored, S, T),
    "where(T != 0)": lambda S, T, e: torch.where(T != 0, S, T),
    "masked_fill": lambda S, T, e: S.masked_fill(T != 0, 0.0),
    "stack sum": lambda S, T, e: torch.stack([S, T]).sum(0),
    "to_dense": lambda S, T, e: S.to_dense(),
}
REAL: dict[str, Two] = {
    "relu": lambda S, T, e: torch.relu(S),
    "normalize": lambda S, T, e: F.normalize(S, p=1.0),
    "abs": lambda S, T, e: S.abs(),
    "tanh": lambda S, T, e: torch.tanh(S),
    "leaky": lambda S, T, e: F.leaky_relu(S, 0.3),
    "gelu": lambda S, T, e: F.gelu(S),
    "clamp": lambda S, T, e: S.clamp(-0.5, 0.7),
    "max": lambda S, T, e: S.max(),
    "min": lambda S, T, e: torch.min(S),
    "amax(0)": lambda S, T, e: S.amax(0),
    "amin(1)": lambda S, T, e: S.amin(1, keepdim=True),
    "max(1)": lambda S, T, e: S.max(1)[0],
    "min(0)": lambda S, T, e: S.min(0)[0],
    "logsumexp(0)": lambda S, T, e: S.logsumexp(0),
    "logsumexp(all)": lambda S, T, e: torch.logsumexp(S, (0, 1)),
    "var(1)": lambda S, T, e: S.var(1, unbiased=False),
    "var": lambda S, T, e: S.var(correction=0),
    "maximum": lambda S, T, e: torch.maximum(S, T),
    "minimum": lambda S, T, e: torch.min(S, T),
    "norm(1)": lambda S, T, e: S.norm(1, 0),
    "norm(inf)": lambda S, T, e: torch.linalg.vector_norm(S, torch.inf, 1),
    "matrix norm 1": lambda S, T, e: torch.linalg.norm(S, 1),
    "matrix norm inf": lambda S, T, e: torch.linalg.matrix_norm(S, torch.inf),
    "reduce 3-d": lambda S, T, e: torch.stack([S, T]).amax((0, 2)),
}
# Their gradient at an all-zero row is a convention, so rows are compared where it is a derivative.
ROOTS: dict[str, Two] = {
    "norm": lambda S, T, e: S.norm(),
    "norm(3, 1)": lambda S, T, e: S.norm(3, 1),
    "norm(2, 0)": lambda S, T, e: torch.linalg.norm(S, 2, 0),
    "std": lambda S, T, e: S.std(1, unbiased=False),
}


@pytest.mark.parametrize("name", LINEAR)
@SETTINGS
@given(case=cases(complex_too=True))
def test_linear_and_structural(name: str, case: Case) -> None:
    compare(case, LINEAR[name], LINEAR[name])


@pytest.mark.parametrize("name", REAL)
@SETTINGS
@given(case=cases())
def test_real_functions(name: str, case: Case) -> None:
    compare(case, REAL[name], REAL[name])


@pytest.mark.parametrize("name", ROOTS)
@SETTINGS
@given(case=cases())
def test_roots(name: str, case: Case) -> None:
    compare(case, ROOTS[name], ROOTS[name], twice=False)


FEW = (
    *("S @ X", "Y @ S", "addmm", "S.t() @ Y", "S @ T.t()", "einsum batch", "einsum full", "S + T", "S * row"),
    *(
        "S + D",
        "sum(0)",
        "sum(1, keepdim)",
        "mean(0)",
        "prod(0)",
        "t",
        "S[i]",
        "S[:, j]",
        "S[slice]",
        "S[ix]",
    ),
    *(
        "S[mask]",
        "cat(1)",
        "reshape",
        "flip",
        "diagonal",
        "trace",
        "tril",
        "where(T != 0)",
        "amax(0)",
        "min(0)",
    ),
    *("max(1)", "logsumexp(0)", "var(1)", "norm(1)", "matrix norm inf", "max"),
)


@pytest.mark.parametrize("name", FEW)
@settings(SETTINGS, max_examples=3)
@given(case=cases())
def test_few_entries_in_many_rows(name: str, case: Case) -> None:
    # Far more rows and columns than entries: only occupied ones are worked on (here from a smaller size on).
    case.rows, case.cols = 75, 62
    case.index, case.other = case.index * 12, case.other * 12
    op = LINEAR.get(name) or REAL[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "SPARE", 0)
        assert places.is_wide(62, case.index.shape[1])
        compare(case, op, op)


@pytest.mark.parametrize("largest", [True, False])
@SETTINGS
@given(case=cases())
def test_argmax_is_the_first(largest: bool, case: Case) -> None:
    v = case.draw(case.index.shape[1], at=1).round()
    S = SparseTensor.from_coo(case.index, v, (case.rows, case.cols))
    D = to_dense(case.index, v, (case.rows, case.cols))
    for dim in (None, 0, 1):
        ours, theirs = (x.argmax(dim) if largest else x.argmin(dim) for x in (S, D))
        # torch doesn't promise which of several it names; ours is the first.
        value = D.max() if largest else D.min()
        if dim is None:
            assert ours == (D.flatten() == value).nonzero()[0, 0]
        else:
            best = D.amax(dim, keepdim=True) if largest else D.amin(dim, keepdim=True)
            assert torch.equal(ours, (best == D).int().argmax(dim)), theirs


@SETTINGS
@given(case=cases())
def test_any_all_count(case: Case) -> None:
    v = case.draw(case.index.shape[1], at=1).round()
    S = SparseTensor.from_coo(case.index, v, (case.rows, case.cols))
    D = to_dense(case.index, v, (case.rows, case.cols))
    for dim in (0, 1):
        assert torch.equal(S.any(dim), D.any(dim)) and torch.equal(S.all(dim), D.all(dim))
        assert torch.equal(S.count_nonzero(dim), D.count_nonzero(dim))
    assert torch.equal(S.any(), D.any()) and torch.equal(S.all(), D.all())
    assert torch.equal(S.nonzero(), D.nonzero())


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
@SETTINGS
@given(case=cases())
def test_softmax_over_stored_entries(dim: int, log: bool, case: Case) -> None:
    def theirs(S: Tensor, T: Tensor, e: Env) -> Tensor:
        # Rows without entries must not turn into nan on the way.
        hidden = torch.where(e.stored, S, torch.full_like(S, -1e300))
        made = (torch.log_softmax if log else torch.softmax)(hidden, dim)
        return torch.where(e.stored, made, torch.zeros_like(made))

    f = torch.sparse.log_softmax if log else torch.sparse.softmax
    compare(case, lambda S, T, e: f(S, dim), theirs)


@pytest.mark.parametrize("reduce", ["mean", "max", "min"])
@SETTINGS
@given(case=cases())
def test_messages(reduce: str, case: Case) -> None:
    def theirs(S: Tensor, T: Tensor, e: Env) -> Tensor:
        sent = S[:, :, None] * e.X
        there = e.stored[:, :, None]
        if reduce == "mean":
            return torch.where(there, sent, 0).sum(1) / there.sum(1).clamp(min=1)
        away = -1e300 if reduce == "max" else 1e300
        found = torch.where(there, sent, away)
        found = found.amax(1) if reduce == "max" else found.amin(1)
        return torch.where(there.any(1), found, 0)

    compare(case, lambda S, T, e: S.propagate(e.X, reduce), theirs)


@SETTINGS
@given(case=cases(square=True, complex_too=True))
def test_solves(case: Case) -> None:
    n = case.rows
    eye = torch.arange(n).repeat(2, 1)
    case.index = torch.cat([case.index, eye], 1)

    def shifted(S: Any, e: Env) -> Any:
        if isinstance(S, SparseTensor):
            return S + SparseTensor.from_coo(eye, torch.full((n,), 6.0, dtype=case.dtype), (n, n))
        return S + 6 * torch.eye(n, dtype=case.dtype)

    solve = torch.linalg.solve
    compare(
        case,
        lambda S, T, e: torch.sparse.spsolve(shifted(S, e), e.X),
        lambda S, T, e: solve(shifted(S, e), e.X),
    )
    for upper in (True, False):
        for unit in (True, False):
            compare(
                case,
                *[
                    lambda S, T, e, upper=upper, unit=unit: torch.linalg.solve_triangular(
                        shifted(S, e), e.X, upper=upper, unitriangular=unit
                    )
                ]
                * 2,
            )

    def definite(S: Any, e: Env) -> Any:
        A = shifted(S, e)
        return A @ (A.mH if not isinstance(A, SparseTensor) else A.H)

    compare(
        case, lambda S, T, e: cg(definite(S, e), e.X, tol=1e-13), lambda S, T, e: solve(definite(S, e), e.X)
    )


@SETTINGS
@given(case=cases(complex_too=True))
def test_ragged_batches_do_not_mix(case: Case) -> None:
    def ours(S: Any, T: Any, e: Env) -> Tensor:
        return block_diag([S, T]) @ torch.cat([e.X, e.X])

    compare(case, ours, lambda S, T, e: torch.cat([S @ e.X, T @ e.X]))


@SETTINGS
@given(case=cases(), count=st.integers(1, 3))
def test_batches_on_one_pattern(case: Case, count: int) -> None:
    pattern = Pattern(case.index, (case.rows, case.cols))
    X = case.draw(case.cols, 2, at=5)
    Xs = case.draw(count, case.cols, 2, at=6)
    for f in (
        lambda S: S @ X,
        lambda S: S @ Xs,
        lambda S: S.mT @ case.draw(case.rows, 2, at=7),
        lambda S: case.draw(count, 3, case.rows, at=8) @ S,
        lambda S: S.sum(-1),
        lambda S: S.sum(0),
        lambda S: S.sum((0, 2)),
        lambda S: S.amax(1),
        lambda S: S.amax((0, 1)),
        lambda S: S.mean(),
        lambda S: S.var((0, 2), correction=0),
        lambda S: S.logsumexp((1, 2)),
        lambda S: S * X[:, 0],
        lambda S: S[:, 0],
        lambda S: S[0],
        lambda S: S[:, :, 0],
        lambda S: S.transpose(1, 2),
        lambda S: S.reshape(count, -1),
        lambda S: S.permute(2, 0, 1),
        lambda S: torch.cat([S, S * 2]),
        lambda S: S + S * S,
        lambda S: S @ S.mT,
        lambda S: torch.relu(S).norm(),
    ):
        v = case.draw(count, case.index.shape[1], at=1).requires_grad_()
        w = v.detach().clone().requires_grad_()
        got = dense_of(f(SparseTensor(pattern, v, batch_dims=1)))
        flat = [to_dense(case.index, line, (case.rows, case.cols)) for line in w]
        want = f(torch.stack(flat))
        torch.testing.assert_close(got, want)
        g, h = gradients(got.pow(2).sum(), [v]), gradients(want.pow(2).sum(), [w])
        torch.testing.assert_close(g, h)


@SETTINGS
@given(case=cases())
def test_dense_dimensions(case: Case) -> None:
    pattern = Pattern(case.index, (case.rows, case.cols))
    W = case.draw(3, 2, at=5)
    for f in (
        lambda S: S @ W,
        lambda S: S @ W[:, 0],
        lambda S: S.sum(1),
        lambda S: S.sum(2),
        lambda S: S.sum((1, 2)),
        lambda S: S.sum(),
        lambda S: S.amax(0),
        lambda S: S.amax((1, 2)),
        lambda S: S.prod(1),
        lambda S: S.max(1)[0],
        lambda S: S.logsumexp(1),
        lambda S: S * W[:, 0],
        lambda S: S.transpose(0, 1),
        lambda S: S.permute(2, 0, 1),
        lambda S: S[0],
        lambda S: S[:, 0],
        lambda S: S[..., 1],
        lambda S: S[:, :, 1:],
        lambda S: S.reshape(-1, 3),
        lambda S: S.reshape(-1),
        lambda S: S.unsqueeze(-1),
        lambda S: torch.cat([S, S], 2),
        lambda S: torch.stack([S, S]),
        lambda S: S + S,
    ):
        v = case.draw(case.index.shape[1], 3, at=1).requires_grad_()
        w = v.detach().clone().requires_grad_()
        got = dense_of(f(SparseTensor(pattern, v)))
        want = f(w.new_zeros(case.rows, case.cols, 3).index_put(tuple(case.index), w, accumulate=True))
        torch.testing.assert_close(got, want)
        g, h = gradients(got.pow(2).sum(), [v]), gradients(want.pow(2).sum(), [w])
        torch.testing.assert_close(g, h)
