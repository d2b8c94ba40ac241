"""One order: values(), indices(), grad.values(), to_edge_index() and SparseTensor(pattern, values) agree on it."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sparse_catalog import OPS, Op, build_dense, dense_of, numbers, places, world
from torch import Tensor

from gradmend.sparse import Pattern, PatternError, SparseError, SparseTensor, batch, sddmm
from gradmend.sparse.data import multi_hot, one_hot

SETTINGS = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
R, C = 4, 5
A_PLACES, B_PLACES = places()
NUMBERS = numbers(A_PLACES, B_PLACES)


def written(index: Tensor, values: Tensor, size: tuple[int, ...]) -> Tensor:
    out = values.new_zeros((*size, *values.shape[1:]))
    return out.index_put(tuple(index), values, accumulate=True)


def law(S: SparseTensor) -> None:
    """What comes out of S goes in again, and all that goes with values() is in its order."""
    n, whole, values = S.batch_dims, S.to_dense(), S.values()
    assert torch.equal(SparseTensor(S.pattern, values, batch_dims=n).to_dense(), whole)
    assert torch.equal(S.indices(), S.pattern.indices())
    assert values.shape[n] == S.indices().shape[1] == S.nnz
    again = SparseTensor(S.pattern, values, batch_dims=n)
    assert again.pattern == S.pattern and torch.equal(again.values(), values)
    if n == 0:
        assert torch.equal(written(S.indices(), values, S.pattern.size), whole)
        assert torch.equal(written(S.pattern.indices(), values, S.pattern.size), whole)
        axes = [S.pattern.row] if S.pattern.ndim == 1 else [S.pattern.row, S.pattern.col]
        assert all(torch.equal(a, i) for a, i in zip(axes, S.indices(), strict=False))
        index, weights = S.to_edge_index()
        assert torch.equal(written(index, weights, S.pattern.size), whole)
        flat = written(S.pattern.keys()[None], values, (S.pattern.numel,))
        assert torch.equal(flat.view(whole.shape), whole)


@st.composite
def entries(draw: Any) -> tuple[Tensor, Tensor]:
    """Places in any order, some of them repeated, and a value for each."""
    pairs = draw(st.lists(st.tuples(st.integers(0, R - 1), st.integers(0, C - 1)), max_size=9))
    seed = draw(st.integers(0, 10**6))
    values = torch.randint(1, 9, (len(pairs),), generator=torch.Generator().manual_seed(seed)).double()
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t(), values


def _compressed(index: Tensor, v: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (or columns) in order, and within them as given."""
    order = torch.argsort(index[axis], stable=True)
    count = torch.bincount(index[axis], minlength=(R, C)[axis])
    return torch.cat([count.new_zeros(1), count.cumsum(0)]), index[1 - axis][order], v[order]


def _saved(S: SparseTensor) -> SparseTensor:
    file = io.BytesIO()
    torch.save(S, file)
    file.seek(0)
    loaded: SparseTensor = torch.load(file, weights_only=True)
    return loaded


def _coo(i: Tensor, v: Tensor) -> SparseTensor:
    return SparseTensor.from_coo(i, v, (R, C))


def _dense_leaf(i: Tensor, v: Tensor) -> SparseTensor:
    return SparseTensor.from_dense(written(i, v, (R, C)).requires_grad_())


BUILDERS: dict[str, Callable[[Tensor, Tensor], SparseTensor]] = {
    "SparseTensor": lambda i, v: SparseTensor(Pattern(i, (R, C)), v),
    "canonical pattern": lambda i, v: SparseTensor(
        Pattern(i, (R, C)).canonical(), Pattern(i, (R, C)).arrange(v)
    ),
    "from_coo": _coo,
    "from_csr": lambda i, v: SparseTensor.from_csr(*_compressed(i, v, 0), (R, C)),
    "from_csc": lambda i, v: SparseTensor.from_csc(*_compressed(i, v, 1), (R, C)),
    "from_edge_index": lambda i, v: SparseTensor.from_edge_index(i, v, (R, C)),
    "from_dense": lambda i, v: SparseTensor.from_dense(written(i, v, (R, C))),
    "from_dense, a leaf": _dense_leaf,
    "from_dense, places": lambda i, v: SparseTensor.from_dense(written(i, v, (R, C)), Pattern(i, (R, C))),
    "from_torch, COO": lambda i, v: SparseTensor.from_torch(torch.sparse_coo_tensor(i, v, (R, C))),
    "from_torch, CSC": lambda i, v: SparseTensor.from_torch(written(i, v, (R, C)).to_sparse_csc()),
    "from_scipy": lambda i, v: SparseTensor.from_scipy(_coo(i, v).to_scipy()),
    "sddmm": lambda i, v: sddmm(Pattern(i, (R, C)), torch.arange(8.0).view(R, 2), torch.ones(2, C)),
    "sampled_addmm": lambda i, v: torch.sparse.sampled_addmm(
        _coo(i, v), torch.ones(R, 2).double(), torch.ones(2, C).double()
    ),
    "dense values": lambda i, v: _coo(i, torch.stack([v, -v], 1)),
    "batch of values": lambda i, v: SparseTensor(Pattern(i, (R, C)), torch.stack([v, -v]), batch_dims=1),
    "batch": lambda i, v: batch([_coo(i, v), _coo(i, -v)]),
    "one_hot": lambda i, v: one_hot(i[0], R),
    "multi_hot": lambda i, v: multi_hot(i[0], R),
    "detach": lambda i, v: _coo(i, v).detach(),
    "to": lambda i, v: _coo(i, v).to(torch.float32),
    "clone": lambda i, v: _coo(i, v).clone(),
    "zeros_like": lambda i, v: torch.zeros_like(_coo(i, v)),
    "coalesce": lambda i, v: _coo(i, v).coalesce(),
    "deepcopy": lambda i, v: copy.deepcopy(_coo(i, v)),
    "save and load": lambda i, v: _saved(_coo(i, v)),
    "copy_": lambda i, v: SparseTensor(Pattern([[0], [0]], (R, C)), torch.ones(1).double()).copy_(_coo(i, v)),
    "an operation": lambda i, v: torch.relu(_coo(i, v)) * 2,
    "an operation, deep copied and saved": lambda i, v: _saved(copy.deepcopy(_coo(i, v) * 2)),
    "vmap": lambda i, v: torch.func.vmap(lambda S: S * 2)(
        SparseTensor(Pattern(i, (R, C)), torch.stack([v, -v]), batch_dims=1)
    ),
}


@pytest.mark.parametrize("name", BUILDERS)
@SETTINGS
@given(entries())
def test_what_comes_out_of_a_tensor_goes_in_again(name: str, case: tuple[Tensor, Tensor]) -> None:
    law(BUILDERS[name](*case))


def shuffled(seed: int) -> Callable[[Tensor, Tensor], SparseTensor]:
    """The tensor of a mask's places, in another order each time."""
    g = torch.Generator().manual_seed(seed)

    def build(mask: Tensor, values: Tensor) -> SparseTensor:
        order = torch.randperm(values.shape[0], generator=g)
        return SparseTensor(Pattern(mask.nonzero().t()[:, order], tuple(mask.shape)), values[order])

    return build


@pytest.mark.parametrize("op", [o for o in OPS if not o.raises], ids=lambda o: o.name)
@settings(SETTINGS, max_examples=3)
@given(seed=st.integers(0, 10**6))
def test_every_operation_takes_and_returns_the_order_of_its_places(op: Op, seed: int) -> None:
    w = world(shuffled(seed), A_PLACES, B_PLACES, NUMBERS)
    made = op.run(w)
    if op.name == "values()":
        assert torch.equal(made, build_dense(A_PLACES, NUMBERS["a"])[tuple(w.A.indices())])
        return
    torch.testing.assert_close(
        dense_of(made), dense_of(op.oracle(world(build_dense, A_PLACES, B_PLACES, NUMBERS)))
    )
    if isinstance(made, SparseTensor):
        law(made)
        if made.pattern.canonical() is w.A.pattern.canonical() and op.name != "coalesce":
            assert made.pattern is w.A.pattern, "the places are A's, and not in its order"


EDGES = torch.tensor([[2, 0, 1], [0, 1, 2]])


def test_sampled_products_and_ratings_go_together() -> None:
    rating, p = torch.tensor([5.0, 1.0, 3.0]), Pattern(EDGES, (3, 3))
    h, g = torch.arange(6.0).view(3, 2), torch.eye(3)[:, :2]
    want = (h[EDGES[0]] * g[EDGES[1]]).sum(1)
    S = sddmm(p, h, g.t())
    assert S.pattern is p and torch.equal(S.values(), want)
    assert torch.equal(rating - S.values(), rating - want)
    assert torch.equal((SparseTensor(p, rating) - S).values(), rating - want)
    assert torch.equal((S * 2 + 1 * S).softmax(1).values(), torch.ones(3))
    assert S.to_edge_index()[0].tolist() == EDGES.tolist()


def test_gradients_come_in_the_order_of_the_values() -> None:
    v, weight = torch.ones(3, requires_grad=True), torch.arange(9.0).view(3, 3)
    S = SparseTensor.from_coo(EDGES, v, (3, 3))
    (S.to_dense() * weight).sum().backward()
    want = weight[tuple(EDGES)]
    assert S.grad.pattern == S.pattern and torch.equal(S.grad.values(), want) and torch.equal(v.grad, want)
    (found,) = torch.autograd.grad((S.to_dense() * weight).sum(), S)
    assert found.pattern == S.pattern and torch.equal(found.values(), want)
    T = S * 2
    T.retain_grad()
    (T.to_dense() * weight).sum().backward()
    assert T.grad.pattern == T.pattern and torch.equal(T.grad.values(), want)
    (of_values,) = torch.autograd.grad(S * 2, S, sddmm(S.pattern, weight, torch.eye(3)))
    assert torch.equal(of_values.values(), 2 * want)
    with pytest.raises(SparseError, match="other places"):
        torch.autograd.grad(S * 2, S, SparseTensor.from_coo([[0, 0, 0], [0, 1, 2]], torch.ones(3), (3, 3)))


def test_patterns_of_other_orders_are_not_equal() -> None:
    p = Pattern(EDGES, (3, 3))
    assert p == Pattern(EDGES, (3, 3)) and hash(p) == hash(Pattern(EDGES, (3, 3)))
    assert p != p.canonical() and p.canonical() == Pattern(EDGES[:, [1, 2, 0]], (3, 3))
    twice = Pattern(EDGES[:, [0, 0, 1, 2]], (3, 3))
    assert twice != p and twice.canonical() == p.canonical()
    # The same entries in two orders are the same matrix all the same.
    S, T = (
        SparseTensor(p, torch.tensor([5.0, 1.0, 3.0])),
        SparseTensor(p.canonical(), torch.tensor([1.0, 3.0, 5.0])),
    )
    assert torch.equal(S, T) and (S - T).nnz == 3 and not (S - T).to_dense().any()


def test_what_counts_rows_asks_for_ascending_places() -> None:
    p, S = Pattern(EDGES, (3, 3)), SparseTensor.from_coo(EDGES, torch.tensor([5.0, 1.0, 3.0]), (3, 3))
    for refused in (lambda: p.ptr, p.transposed):
        with pytest.raises(PatternError, match=r"pattern\.canonical\(\)"):
            refused()
    with pytest.raises(SparseError, match=r"S\.coalesce\(\)\.crow_indices"):
        S.crow_indices()
    assert not S.is_coalesced() and S.coalesce().is_coalesced()
    assert S.coalesce().crow_indices().tolist() == [0, 1, 2, 3] and S.coalesce().values().tolist() == [
        1,
        3,
        5,
    ]
    # Columns may be in any order within a row.
    T = SparseTensor.from_csr([0, 2, 3], [2, 0, 1], torch.tensor([1.0, 2.0, 3.0]), (2, 3))
    again = SparseTensor.from_csr(T.crow_indices(), T.col_indices(), T.values(), (2, 3))
    assert T.values().tolist() == [1, 2, 3] and torch.equal(again, T)


# Writing into what values() returns


@pytest.mark.parametrize(
    "places", [[[0, 1, 2], [1, 2, 0]], [[2, 0, 1], [0, 1, 2]]], ids=["sorted", "unsorted"]
)
def test_a_write_to_the_values_changes_the_tensor(places: list[list[int]]) -> None:
    v = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    S = SparseTensor.from_coo(torch.tensor(places), v, (3, 3))
    assert S.values() is v
    with torch.no_grad():
        S.values()[1] += 1
        S.values().clamp_(max=2.5)
    assert v.tolist() == [1, 2.5, 2.5] and S.sum().item() == 6
    S.sum().backward()
    S.grad.values()[0] = 10
    assert v.grad.tolist() == [10, 1, 1]


def _twice() -> SparseTensor:
    return SparseTensor.from_coo([[0, 0, 1], [1, 1, 0]], torch.ones(3, requires_grad=True), (2, 2))


def _read() -> SparseTensor:
    W = torch.eye(3, requires_grad=True)
    return SparseTensor.from_dense(W, W.detach() != 0)


COPIES: dict[str, Callable[[], SparseTensor]] = {
    "repeated places": _twice,
    "read from a dense leaf": _read,
    "a result in the user's order": lambda: SparseTensor.from_coo(EDGES, torch.ones(3), (3, 3)) * 2,
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("grad", [True, False])
def test_a_write_to_a_copy_of_the_values_raises(name: str, grad: bool) -> None:
    S = COPIES[name]()
    kept = S.values()
    with torch.set_grad_enabled(grad):
        S.values()[1] += 1
        with pytest.raises(SparseError, match="copy of the values was written to"):
            S.sum()
        before = S.sum()  # it was reported, and S is what it was
        S.values()[:1].clamp_(max=0.5)
        with pytest.raises(SparseError, match="copy of the values was written to"):
            S.values()
        assert torch.equal(S.sum(), before)
        kept[0] = 7.0 if not grad else kept[0] + 7
        with pytest.raises(SparseError, match="copy of the values was written to"):
            S @ torch.ones(S.shape[1], 1)
    S.values().clone().add_(1)
    S.sum()


def test_a_write_that_no_version_counts_raises_too() -> None:
    S = SparseTensor.from_coo(EDGES, torch.ones(3), (3, 3)) * 2
    S.values().numpy()[0] = 5
    with pytest.raises(SparseError, match="copy of the values was written to"):
        S.sum()
    with torch.inference_mode():
        S.values().add_(1)
        with pytest.raises(SparseError, match="copy of the values was written to"):
            S.sum()


@pytest.mark.parametrize("name", ["repeated places", "read from a dense leaf"])
def test_a_write_to_a_copy_of_the_gradient_raises(name: str) -> None:
    S = COPIES[name]()
    S.sum().backward()
    S.grad.values()[0] = 10
    with pytest.raises(SparseError, match="copy of the values was written to"):
        S.sum()


def test_copies_are_forgotten_with_their_last_user() -> None:
    S = _twice()
    for _ in range(5):
        S.values()
    S.sum()
    assert not S._copies._kept
    kept = S.values()
    S.sum()
    assert len(S._copies._kept) == 1 and kept.shape == (2,)


def test_training_takes_the_places_in_any_order() -> None:
    """A factorization from ratings in the order they came, its error by sddmm at the same pattern."""
    g = torch.Generator().manual_seed(0)
    left, right = torch.randn(12, 3, generator=g), torch.randn(9, 3, generator=g)
    p = Pattern(
        Pattern.random((12, 9), density=0.5, generator=g).indices()[:, torch.randperm(54, generator=g)],
        (12, 9),
    )
    rating = (left[p.row] * right[p.col]).sum(1)
    A, B = (torch.randn(n, 3, generator=g).requires_grad_() for n in (12, 9))
    optimizer = torch.optim.Adam([A, B], 0.05)
    for _ in range(400):
        loss = F.mse_loss(sddmm(p, A, B.t()).values(), rating)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.01 < F.mse_loss(rating, rating.flip(0))
