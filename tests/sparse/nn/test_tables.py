"""Embedding tables at their edges, against torch's own: other weights than those they were made with, offsets, graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradmend.sparse import SparseError, SparseTensor
from gradmend.sparse.errors import OutsideError
from gradmend.sparse.nn import SparseEmbedding, SparseEmbeddingBag

IDS = torch.tensor([1, 7, 3, 3, 2, 9, 0, 2, 5, 9, 8, 4])


def layers() -> list[tuple[nn.Module, nn.Module]]:
    bags = [
        (SparseEmbeddingBag(10, 4, mode=m), nn.EmbeddingBag(10, 4, mode=m)) for m in ("sum", "mean", "max")
    ]
    return [(SparseEmbedding(10, 4), nn.Embedding(10, 4)), *bags]


@pytest.mark.parametrize(("ours", "twin"), layers(), ids=["embedding", "sum", "mean", "max"])
@pytest.mark.parametrize("rows", [6, 100])
def test_ids_are_held_against_the_weight_that_is_used(ours: nn.Module, twin: nn.Module, rows: int) -> None:
    """A table's kernel would read whatever lies behind a smaller one."""
    W = torch.randn(rows, 4)
    inside, outside = torch.full((64, 40), rows - 1), torch.full((64, 40), rows)
    torch.testing.assert_close(
        torch.func.functional_call(ours, {"weight": W}, (inside,)),
        torch.func.functional_call(twin, {"weight": W}, (inside,)),
    )
    with pytest.raises(OutsideError, match=f"the table has the rows 0 to {rows - 1}"):
        torch.func.functional_call(ours, {"weight": W}, (outside,))
    ours.weight = nn.Parameter(W)
    with pytest.raises(OutsideError, match=f"the table has the rows 0 to {rows - 1}"):
        ours(outside)
    ours(inside).sum().backward()
    grad = ours.weight.grad
    assert isinstance(grad, Tensor) and grad.shape == W.shape and int(grad._indices().max()) == rows - 1


def test_a_bag_of_words_fits_the_weight_that_is_used() -> None:
    bag = SparseEmbeddingBag(50, 4, mode="sum")
    S = SparseTensor.from_coo([[0, 1], [49, 3]], torch.ones(2), (2, 50))
    with pytest.raises(SparseError, match=r"a sparse matrix of \(bags, 10\), not \(2, 50\)"):
        torch.func.functional_call(bag, {"weight": torch.ones(10, 4)}, (S,))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("offsets", [[0, 4, 9], [0, 4, 4, 12], [0, 0], [0, 3, 3]])
def test_ids_after_the_last_offset_are_in_no_bag(offsets: list[int], weighted: bool) -> None:
    ours = SparseEmbeddingBag(10, 4, mode="sum", include_last_offset=True)
    twin = nn.EmbeddingBag(10, 4, mode="sum", include_last_offset=True)
    twin.load_state_dict(ours.state_dict())
    mine, its = (torch.arange(12.0).requires_grad_() if weighted else None for _ in range(2))
    at = torch.tensor(offsets)
    a, b = ours(IDS, at, mine), twin(IDS, at, its)
    torch.testing.assert_close(a, b)
    a.pow(2).sum().backward()
    (twin(IDS[: offsets[-1]], at, None if its is None else its[: offsets[-1]])).pow(2).sum().backward()
    torch.testing.assert_close(ours.weight.grad.to_dense(), twin.weight.grad)
    if mine is not None and its is not None:
        torch.testing.assert_close(mine.grad, its.grad)


def test_offsets_are_refused_in_the_words_of_the_caller() -> None:
    bag = SparseEmbeddingBag(10, 4, mode="sum", include_last_offset=True)
    for wrong in ([0, 9, 4], [1, 4], [0, 13], [-1, 4]):
        with pytest.raises(
            SparseError, match="offsets begin with 0, never fall, and none is beyond the 12 ids"
        ):
            bag(IDS, torch.tensor(wrong))
    with pytest.raises(SparseError, match="offsets are one vector"):
        bag(IDS, torch.empty(0, dtype=torch.int64))
    # torch (2.13) adds the rest to the last bag's sum where there is padding, and to its count in a mean.
    for options in ({"mode": "mean"}, {"mode": "max"}, {"mode": "sum", "padding_idx": 2}):
        other = SparseEmbeddingBag(10, 4, include_last_offset=True, **options)
        with pytest.raises(SparseError, match=r"the last offset is 9, and there are 12 ids.*pass ids\[:9\]"):
            other(IDS, torch.tensor([0, 4, 9]))


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("given", ["matrix", "offsets", "weights"])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_compiles_as_one_graph(mode: str, given: str, padding: int | None) -> None:
    if given == "weights" and mode == "max":
        pytest.skip("weights are for sums and means")
    bag = SparseEmbeddingBag(10, 4, mode=mode, padding_idx=padding, dtype=torch.float64)
    weight = torch.linspace(-1, 1, 12, dtype=torch.float64, requires_grad=True)
    args: tuple[Any, ...] = (IDS.view(3, 4),) if given == "matrix" else (IDS, torch.tensor([0, 4, 4, 9]))
    if given == "weights":
        args = (*args, weight)
    trained = [bag.weight, weight] if given == "weights" else [bag.weight]

    def outcome(model: Any) -> list[Tensor]:
        out = model(*args)
        return [out.detach(), *(g.to_dense() for g in torch.autograd.grad(out.pow(2).sum(), trained))]

    # Weights that go with padding are taken out of their vector: a graph on either side.
    one = given != "weights" or padding is None
    compiled = torch.compile(bag, backend="aot_eager", fullgraph=one)
    torch.testing.assert_close(outcome(compiled), outcome(bag))


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_compiled_bag_with_its_last_offset() -> None:
    bag = SparseEmbeddingBag(10, 4, mode="sum", include_last_offset=True)
    compiled = torch.compile(bag, backend="aot_eager", fullgraph=True)
    at, weights = torch.tensor([0, 4, 9]), torch.arange(12.0)
    torch.testing.assert_close(compiled(IDS, at, weights), bag(IDS, at, weights))
    mean = torch.compile(
        SparseEmbeddingBag(10, 4, include_last_offset=True), backend="aot_eager", fullgraph=True
    )
    assert mean(IDS, torch.tensor([0, 4, 12])).shape == (2, 4)
    with pytest.raises(RuntimeError, match="the last offset is not the number of ids"):
        mean(IDS, at)
