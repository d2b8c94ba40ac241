"""What is refused is refused in one sentence that says what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gradmend.errors import GradmendError
from gradmend.sparse import DenseResultError, Pattern, SparseError, SparseTensor, cg

S = SparseTensor(Pattern([[0, 1, 2], [1, 0, 2]], (3, 3)), torch.tensor([1.0, 2.0, 3.0]))
D = torch.ones(3, 3)

DENSE: dict[str, Callable[[], Any]] = {
    "S + 1": lambda: S + 1,
    "1 - S": lambda: 1 - S,
    "S + 0-d": lambda: S + torch.tensor(1.0),
    "S + row": lambda: S + torch.ones(3),
    "1 / S": lambda: 1 / S,
    "D / S": lambda: D / S,
    "S / S": lambda: S / S,
    "2 ** S": lambda: 2**S,
    "S ** 0": lambda: S**0,
    "S ** -1": lambda: S**-1,
    "exp": lambda: S.exp(),
    "cos": lambda: torch.cos(S),
    "log": lambda: torch.log(S),
    "sigmoid": lambda: torch.sigmoid(S),
    "softplus": lambda: F.softplus(S),
    "clamp(1, 2)": lambda: S.clamp(1, 2),
    "hardtanh": lambda: F.hardtanh(S, 0.5, 1.0),
    "S == 0": lambda: S == 0,
    "S < 1": lambda: S < 1,
    "S >= S": lambda: S >= S,
    "~mask": lambda: ~(S != 0),
    "ones_like": lambda: torch.ones_like(S),
    "maximum(S, D)": lambda: torch.maximum(S, D),
    "where(S, S, 1)": lambda: torch.where(S != 0, S, 1.0),
    "masked_fill(1)": lambda: S.masked_fill(D > 0, 1.0),
}


@pytest.mark.parametrize("f", DENSE.values(), ids=DENSE.keys())
def test_dense_results(f: Callable[[], Any]) -> None:
    with pytest.raises(DenseResultError) as told:
        f()
    said = str(told.value)
    assert "is dense in every entry (" in said and "S.map(" in said and "S.to_dense()" in said
    assert "\n" not in said and said.endswith(".")
    assert isinstance(told.value, GradmendError | NotImplementedError)


OTHER: dict[str, tuple[Callable[[], Any], str]] = {
    "unknown function": (lambda: torch.fft.fft(S), r"not defined for SparseTensor: apply it .*S\.map"),
    "svd": (lambda: torch.linalg.svd(S), r"linalg_svd is not defined for SparseTensor"),
    "shapes": (lambda: S @ torch.ones(4, 2), r"shapes \(3, 3\) and \(4, 2\) can't be multiplied: 3 and 4"),
    "left shapes": (
        lambda: torch.ones(2, 4) @ S,
        r"shapes \(2, 4\) and \(3, 3\) can't be multiplied: 4 and 3",
    ),
    "broadcast": (lambda: S * torch.ones(4), r"shape \(4,\) doesn't broadcast to S of the shape \(3, 3\)"),
    "S + S": (lambda: S + S[:2], r"\(3, 3\) and \(2, 3\) can't be combined entry by entry"),
    "dim": (lambda: S.sum(2), r"dimension 2 doesn't exist: S has the shape \(3, 3\)"),
    "dims": (lambda: S.sum((0, 0)), r"appears twice"),
    "cat": (lambda: torch.cat([S, S[:2]], 1), r"differ in more than dimension 1"),
    "reshape": (lambda: S.reshape(2, 4), r"can't take the shape \(2, 4\): 9 entries"),
    "map": (lambda: S.map(torch.sum), r"keeps one value per stored entry"),
    "reduce": (lambda: S.propagate(D, "median"), r"sum, mean, max or min"),
    "singular": (
        lambda: torch.sparse.spsolve(S * torch.tensor([1.0, 1.0, 0.0]), torch.ones(3)),
        r"is singular",
    ),
    "zero diagonal": (
        lambda: torch.linalg.solve_triangular(S, D, upper=True),
        r"zero on its diagonal",
    ),
    "cg": (lambda: cg(S, torch.ones(3), max_steps=5), r"symmetric positive definite"),
    "einsum": (lambda: torch.einsum("ij,jk,kl->il", S, S, D), r"one sparse operand"),
    "step": (lambda: S[::-1], r"positive step, not -1: use S\.flip\(0\)"),
    "two indices": (lambda: S.unsqueeze(0)[[0], :, [1]], r"S\[rows\]\[:, cols\]"),
}


@pytest.mark.parametrize(("f", "said"), OTHER.values(), ids=OTHER.keys())
def test_other_refusals(f: Callable[[], Any], said: str) -> None:
    with pytest.raises((SparseError, ValueError), match=said):
        f()


def test_a_mask_is_boolean() -> None:
    for mask in (S, D):
        with pytest.raises(SparseError, match="masked_fill takes a boolean mask, such as S != 0"):
            S.masked_fill(mask, 0)
    with pytest.raises(RuntimeError, match="boolean masks"):
        D.masked_fill(D, 0)


def test_methods_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match=r"S\.relu_ would write in place.*use S\.relu or S\.map\(f\)"):
        S.relu_()
    with pytest.raises(AttributeError, match=r"S\.cumprod is not defined for SparseTensor"):
        S.cumprod(0)
    with pytest.raises(AttributeError, match=r"has no attribute 'colour'"):
        _ = S.colour
    assert not hasattr(S, "cumprod") and hasattr(S, "sum")


def test_indices_outside() -> None:
    for f in (
        lambda: S[3],
        lambda: S[[0, 5]],
        lambda: S[0, 7],
        lambda: S[0, 0, 0],
        lambda: S[torch.tensor([True])],
        lambda: S.index_select(0, torch.tensor([-1])),  # counts from 0 in torch too
        lambda: S.index_select(1, torch.tensor([0, 3])),
    ):
        with pytest.raises(IndexError):
            f()
    with pytest.raises(IndexError):
        D.index_select(0, torch.tensor([-1]))
    assert torch.equal(S[torch.tensor([-1])].to_dense(), S.to_dense()[[-1]])
    assert S[-1].to_dense().tolist() == [0, 0, 3]


def test_the_docs_table_has_no_failure_of_ours() -> None:
    from pathlib import Path

    page = Path(__file__).parents[2] / "docs" / "sparse-operations.md"
    rows = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == 106
    ours = [row[-1].rstrip(" |") for row in rows]
    assert set(ours) == {"ok", "dense"} and ours.count("dense") == 3


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("other", [lambda A: A.to_sparse(), lambda A: A.to_sparse_csr()], ids=["COO", "CSR"])
@pytest.mark.parametrize(
    "op",
    [lambda S, A: S @ A, lambda S, A: A @ S, lambda S, A: S * A, lambda S, A: S + A, lambda S, A: A * S],
    ids=["S @ A", "A @ S", "S * A", "S + A", "A * S"],
)
def test_torchs_own_sparse_tensors_are_to_be_converted(op: Any, other: Any, grad: bool) -> None:
    S = SparseTensor(Pattern([[0, 1], [1, 0]], (2, 2)).prepare(), torch.ones(2, requires_grad=grad))
    with pytest.raises(SparseError, match=r"SparseTensor\.from_torch"):
        op(S, other(torch.eye(2)))


@pytest.mark.parametrize("n", [True, torch.tensor(True), 1.5])
def test_a_size_is_a_whole_number(n: Any) -> None:
    for f in (lambda t: t.reshape(n, -1), lambda t: t.repeat(n, 1), lambda t: t.expand(n, 3)):
        with pytest.raises((TypeError, RuntimeError)):
            f(D)
        with pytest.raises(SparseError, match="whole numbers are needed"):
            f(S)


@pytest.mark.parametrize("entries", [0, 2])
def test_complex_numbers_have_no_extremes(entries: int) -> None:
    places = torch.tensor([[0, 1], [1, 0]])[:, :entries]
    C = SparseTensor.from_coo(places, torch.ones(entries, dtype=torch.complex64), (3, 3))
    X = torch.ones(3, 2, dtype=torch.complex64)
    for f in (lambda: C.propagate(X, "min"), lambda: C.aggregate("max"), lambda: C.amax(1)):
        with pytest.raises(SparseError, match="complex64 has no largest and smallest"):
            f()


def test_more_copies_than_memory_holds_are_refused_and_of_nothing_are_nothing() -> None:
    one = SparseTensor.from_coo([[0]], torch.ones(1), (1,))
    with pytest.raises(SparseError, match="would store 4611686018427387904 entries"):
        one.broadcast_to(2**62)
    none = SparseTensor.from_coo(torch.zeros(1, 0, dtype=torch.int64), torch.ones(0), (1,))
    assert none.broadcast_to(2**62).shape == (2**62,)


def test_einsum_sums_products_of_one_dtype_as_torch_does() -> None:
    v = SparseTensor.from_coo([[0]], torch.ones(1, dtype=torch.int64), (2,))
    with pytest.raises(RuntimeError):
        torch.einsum("i,i->", v.to_dense(), torch.ones(2, dtype=torch.bool))
    with pytest.raises(SparseError, match=r"one dtype, not of torch\.bool and torch\.int64"):
        torch.einsum("i,i->", v, torch.ones(2, dtype=torch.bool))


def test_equal_compares_with_a_dense_tensor_too() -> None:
    assert torch.equal(S, S.to_dense()) and S.equal(S.to_dense()) and torch.equal(S.to_dense(), S)
    assert not torch.equal(S, D) and not torch.equal(S, D[:2])
    with pytest.raises(SparseError, match="equal takes tensors, not int"):
        S.equal(3)


def test_arguments_that_dense_refuses_too() -> None:
    v, x = SparseTensor.from_coo([[0]], torch.ones(1), (1,)), torch.ones(1)
    for f, said in (
        (lambda: S.view(v), "whole numbers are needed"),
        (lambda: S.gather(0, torch.zeros(1, 1)), "whole numbers"),
        (lambda: F.linear(v, v, x), r"a weight of \(out, in\)"),
        (lambda: S.threshold(-1.0, 0.0, x), "inplace is True or False"),
    ):
        with pytest.raises(SparseError, match=said):
            f()
    assert torch.equal(torch.linalg.norm(S, 1, torch.tensor(0)), torch.linalg.norm(S.to_dense(), 1, 0))


NO_DIMENSION: dict[str, Callable[[Any, int], Any]] = {
    "sum": lambda t, d: t.sum(d),
    "mean of two": lambda t, d: t.mean((0, d)),
    "softmax": lambda t, d: torch.softmax(t, d),
    "norm": lambda t, d: torch.linalg.vector_norm(t, 2, d),
    "max": lambda t, d: t.max(d),
    "cumsum": lambda t, d: t.cumsum(d),
    "topk": lambda t, d: t.topk(1, d),
    "transpose": lambda t, d: t.transpose(0, d),
    "permute": lambda t, d: t.permute(0, d),
    "unsqueeze": lambda t, d: t.unsqueeze(d + (1 if d > 0 else -1)),
    "squeeze": lambda t, d: t.squeeze(d),
    "stack": lambda t, d: torch.stack([t, t], d + (1 if d > 0 else -1)),
    "cat": lambda t, d: torch.cat([t, t], d),
    "select": lambda t, d: t.select(d, 0),
    "split": lambda t, d: t.split(1, d),
    "roll": lambda t, d: t.roll(1, d),
    "flatten": lambda t, d: t.flatten(0, d),
    "tensordot": lambda t, d: torch.tensordot(t, D, ([d], [0])),
    "size": lambda t, d: t.size(d),
    "index": lambda t, d: t[9],
}


@pytest.mark.parametrize("dim", [2, -3])
@pytest.mark.parametrize("f", NO_DIMENSION.values(), ids=NO_DIMENSION.keys())
def test_a_dimension_that_is_not_there_is_an_index_error_as_in_torch(
    f: Callable[[Any, int], Any], dim: int
) -> None:
    with pytest.raises(IndexError):
        f(D, dim)
    with pytest.raises(SparseError) as told:
        f(S, dim)
    assert isinstance(told.value, IndexError)
