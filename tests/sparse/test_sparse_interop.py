"""To every other way of writing a sparse matrix and back, gradients included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from gradmend.sparse import Pattern, PatternError, SparseError, SparseTensor, cg

INDEX = torch.tensor([[0, 3, 1, 1, 0, 5], [1, 2, 0, 0, 1, 3]])


def dense_of(v: Tensor) -> Tensor:
    return v.new_zeros(6, 4).index_put(tuple(INDEX), v, accumulate=True)


@pytest.fixture
def v() -> Tensor:
    return torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
def test_torch_layouts_there_and_back(layout: str, v: Tensor) -> None:
    def trip(v: Tensor) -> Tensor:
        S = SparseTensor.from_coo(INDEX, v, (6, 4))
        block = ((2, 2),) if layout.startswith("bs") else ()
        return getattr(S, f"to_sparse_{layout}")(*block)

    made = trip(v)
    assert made.layout == getattr(torch, f"sparse_{layout}")
    torch.testing.assert_close(made.to_dense(), dense_of(v))
    again = SparseTensor.from_torch(made.detach())
    torch.testing.assert_close(again.to_dense(), dense_of(v))
    assert gradcheck(lambda v: trip(v).to_dense(), [v])


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr"])
def test_gradients_reach_the_values_of_torch_tensors(layout: str, v: Tensor) -> None:
    if layout == "coo":
        A = torch.sparse_coo_tensor(INDEX, v, (6, 4))
        want = dense_of(v)
    elif layout == "bsr":
        v = torch.randn(2, 2, 2, dtype=torch.float64, requires_grad=True)
        A = torch.sparse_bsr_tensor([0, 1, 1, 2], [1, 0], v, (6, 4))
        want = torch.zeros(6, 4, dtype=torch.float64)
        want[0:2, 2:4], want[4:6, 0:2] = v[0], v[1]
    else:
        make = torch.sparse_csr_tensor if layout == "csr" else torch.sparse_csc_tensor
        size = (6, 4) if layout == "csr" else (4, 6)
        A = make([0, 1, 2, 2, 4, 5, 6], [1, 0, 1, 2, 0, 3], v, size)
        row = torch.tensor([0, 1, 3, 3, 4, 5])
        col = torch.tensor([1, 0, 1, 2, 0, 3])
        places = (row, col) if layout == "csr" else (col, row)
        want = v.new_zeros(size).index_put(places, v)
    S = SparseTensor.from_torch(A)
    torch.testing.assert_close(S.to_dense(), want)
    weight = torch.randn_like(want)
    (g,) = torch.autograd.grad((S.to_dense() * weight).sum(), v)
    (h,) = torch.autograd.grad((want * weight).sum(), v)
    torch.testing.assert_close(g, h)


def test_a_gradient_that_torch_cuts_is_an_error() -> None:
    A = torch.sparse_csr_tensor([0, 1, 2], [0, 1], torch.ones(2, requires_grad=True), (2, 2))
    with pytest.raises(SparseError, match="give the values themselves"):
        SparseTensor.from_torch(A * 2)


_LATER = {
    "* 2": lambda A: A * 2,
    "* A": lambda A: A * A,
    "+ A": lambda A: A + A,
    "t": lambda A: A.t(),
    "relu": lambda A: A.relu(),
    "@ A": lambda A: A @ A,
}


@pytest.mark.parametrize("step", _LATER)
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("made", ["constructed", "coalesced", "to_sparse"])
def test_what_torch_made_of_a_coo_tensor_has_a_second_derivative_or_an_error(
    made: str, power: int, step: str
) -> None:
    """torch.sparse_coo_tensor cuts it in silence, however far behind it lies (2.13); to_sparse() does not."""
    v = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64, requires_grad=True)
    index = torch.tensor([[0, 0, 1, 2], [0, 1, 1, 2]])
    D = v.new_zeros(3, 3).index_put(tuple(index), v)
    A = D.to_sparse() if made == "to_sparse" else torch.sparse_coo_tensor(index, v, (3, 3))
    S = SparseTensor.from_torch(_LATER[step](A.coalesce() if made == "coalesced" else A))
    theirs, ours = (x if power == 1 else x * x for x in (_LATER[step](D), S))

    (want,) = torch.autograd.grad(theirs.sum(), v, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(ours.sum(), v, retain_graph=True)[0], want.detach())
    try:
        (got,) = torch.autograd.grad(ours.sum(), v, create_graph=True)
    except SparseError as refused:
        said = str(refused)
    else:
        said = ""
    if said:
        assert made != "to_sparse" and (power == 2 or step in ("* A", "relu", "@ A"))
        assert "cut the second derivative" in said
        return
    second = [
        torch.autograd.grad(g.pow(2).sum(), v, retain_graph=True)[0]
        if g.requires_grad
        else torch.zeros_like(v)
        for g in (got, want)
    ]
    torch.testing.assert_close(*second)


def test_a_gradient_of_rows_comes_back_to_rows() -> None:
    """torch's to_dense() sends back a sparse gradient, with the dense dimensions that S has."""
    values = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    S = SparseTensor(Pattern(torch.tensor([[1, 3]]), (5,)), values)
    S.to_sparse_coo().to_dense().pow(3).sum().backward()
    torch.testing.assert_close(values.grad, 3 * values.detach() ** 2)


@pytest.mark.parametrize("index", [[[0, 0, 1], [0, 1, 0]], [[1, 0, 0], [0, 1, 0]], [[1, 0, 1], [0, 1, 0]]])
@pytest.mark.parametrize("kind", ["leaf", "inner", "coalesced", "watched"])
def test_a_coo_tensor_that_trains(kind: str, index: list[list[int]], v: Tensor) -> None:
    """Made once from a leaf, S follows it; a second derivative is right, or an error."""
    v = v.detach()[:3].clone().requires_grad_()
    values = v * 1 if kind == "inner" else v
    A = torch.sparse_coo_tensor(torch.tensor(index), values, (2, 2))
    if kind == "coalesced":
        A = A.coalesce()
    if kind == "watched":
        A.retain_grad()
    S = SparseTensor.from_torch(A)
    D = torch.zeros(2, 2, dtype=v.dtype).index_put(tuple(torch.tensor(index)), v, accumulate=True)

    def penalty(M: Tensor | SparseTensor) -> Tensor:
        loss = (M @ torch.eye(2, dtype=v.dtype)).pow(3).sum()
        (first,) = torch.autograd.grad(loss, v, create_graph=True)
        return torch.autograd.grad(loss + first.pow(2).sum(), v)[0]

    if kind == "leaf":
        torch.testing.assert_close(penalty(S), penalty(D))
        with torch.no_grad():
            v.mul_(10)
        torch.testing.assert_close(S.to_dense(), A.to_dense())
        for _ in range(2):
            v.grad = None
            S.to_dense().sum().backward()
            assert torch.equal(v.grad, torch.ones_like(v))
    else:
        with pytest.raises(SparseError, match="cut the second derivative there in silence"):
            penalty(S)
        S.to_dense().pow(2).sum().backward()
        torch.testing.assert_close(v.grad, torch.autograd.grad(D.pow(2).sum(), v)[0])
        assert kind != "watched" or A.grad is not None


def test_batched_csr() -> None:
    crow = torch.tensor([[0, 1, 2], [0, 1, 2]])
    same = torch.sparse_csr_tensor(crow, torch.tensor([[0, 1], [0, 1]]), torch.randn(2, 2), (2, 2, 2))
    S = SparseTensor.from_torch(same)
    assert S.batch_dims == 1 and torch.equal(S.to_dense(), same.to_dense())
    mixed = torch.sparse_csr_tensor(crow, torch.tensor([[0, 1], [1, 0]]), torch.randn(2, 2), (2, 2, 2))
    S = SparseTensor.from_torch(mixed)
    assert S.batch_dims == 0 and torch.equal(S.to_dense(), mixed.to_dense())


def test_compressed_arrays() -> None:
    v = torch.arange(1.0, 4.0, requires_grad=True)
    S = SparseTensor.from_csr([0, 2, 2, 3], [0, 2, 1], v, (3, 3))
    assert S.to_dense().tolist() == [[1, 0, 2], [0, 0, 0], [0, 3, 0]]
    T = SparseTensor.from_csc([0, 2, 2, 3], [0, 2, 1], v, (3, 3))
    assert torch.equal(T.to_dense(), S.to_dense().t())
    B = SparseTensor.from_bsr([0, 1, 1], [1], torch.arange(4.0).view(1, 2, 2), (4, 4))
    assert B.to_dense()[:2, 2:].tolist() == [[0, 1], [2, 3]] and B.nnz == 4
    with pytest.raises(PatternError, match="end at 4, and there are 3 indices"):
        SparseTensor.from_csr([0, 2, 2, 4], [0, 2, 1], v)
    with pytest.raises(PatternError, match="never falls"):
        SparseTensor.from_csr([0, 2, 1, 3], [0, 2, 1], v)


def test_dense_with_and_without_a_mask() -> None:
    X = torch.tensor([[0.0, 2.0], [3.0, 0.0]], requires_grad=True)
    S = SparseTensor.from_dense(X)
    assert S.nnz == 2 and torch.equal(S.to_dense(), X)
    mask = torch.tensor([[True, True], [False, False]])
    T = SparseTensor.from_dense(X, mask)
    assert T.nnz == 2 and T.values().tolist() == [0, 2]
    T.sum().backward()
    assert X.grad.tolist() == [[1, 1], [0, 0]]
    assert SparseTensor.from_dense(X, T.pattern).values().tolist() == [0, 2]
    rows = SparseTensor.from_dense(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), sparse_dims=1)
    assert rows.nnz == 1 and rows.dense_dim() == 1 and rows.values().tolist() == [[1, 0]]
    assert SparseTensor.from_dense([[0, 1], [2, 0]]).values().tolist() == [1, 2]


def test_scipy_there_and_back() -> None:
    scipy = pytest.importorskip("scipy.sparse")
    A = scipy.random_array((7, 5), density=0.4, format="csr", rng=0)
    S = SparseTensor.from_scipy(A)
    torch.testing.assert_close(S.to_dense(), torch.as_tensor(A.toarray()))
    for layout in ("csr", "csc", "coo"):
        B = S.to_scipy(layout)
        assert B.format == layout and abs(A - B).sum() == 0
    with pytest.raises(SparseError, match=r"S\.detach\(\)"):
        S.map(lambda v: v.clone().requires_grad_()).to_scipy()


def test_edge_index() -> None:
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    w = torch.rand(4, requires_grad=True)
    A = SparseTensor.from_edge_index(edges, w, num_nodes=4)
    assert A.shape == (4, 4) and torch.equal(A.to_edge_index()[0], edges)
    x = torch.randn(4, 2)
    want = torch.zeros(4, 2).index_add(0, edges[1], w[:, None] * x[edges[0]])
    torch.testing.assert_close(A.t() @ x, want)
    assert SparseTensor.from_edge_index(edges).shape == (3, 3)
    with pytest.raises(PatternError, match=r"edge_index is \(2, edges\), not \(4, 2\)"):
        SparseTensor.from_edge_index(edges.t())


def test_lists() -> None:
    S = SparseTensor.from_lists([[1], [], [0, 2]], [[5.0], [], [6.0, 7.0]], cols=4)
    assert S.to_dense().tolist() == [[0, 5, 0, 0], [0, 0, 0, 0], [6, 0, 7, 0]]
    assert SparseTensor.from_coo([[0, 1], [1, 0]], [1.0, 2.0]).to_dense().tolist() == [[0, 1], [2, 0]]


def test_size_may_be_whole_or_sparse_only() -> None:
    v = torch.ones(2, 3)
    for size in ((2, 2), (2, 2, 3)):
        assert SparseTensor.from_coo([[0, 1], [1, 0]], v, size).shape == (2, 2, 3)
    with pytest.raises(PatternError, match="doesn't fit 2 sparse dimensions"):
        SparseTensor.from_coo([[0, 1], [1, 0]], v, (2, 2, 4))


def test_pictures() -> None:
    S = SparseTensor(Pattern([[0, 1], [1, 0]], (2, 2)), torch.tensor([2.0, 3.0]))
    assert repr(S) == (
        "SparseTensor(2 x 2, 2 entries, 50% full, float32)\n  (0, 1): 2\n  (1, 0): 3\n"
        "  ┌──┐\n  │ █│\n  │█ │\n  └──┘"
    )
    big = SparseTensor(Pattern.random((10**9, 10**9), nnz=50), torch.ones(50, dtype=torch.complex64))
    assert "·" in big.spy() and "complex64" in repr(big)
    empty = SparseTensor(Pattern(torch.zeros(2, 0, dtype=torch.int64), (3, 3)), torch.zeros(0))
    assert "0 entries" in repr(empty)


def _triangle() -> SparseTensor:
    dense = torch.tensor([[2.0, 0.0, 0.0], [1.0, 4.0, 0.0], [0.0, 3.0, 5.0]], dtype=torch.float64)
    return SparseTensor.from_dense(dense)


@pytest.mark.parametrize("lead", [(), (3,), (2,), (3, 3), (2, 0)])
def test_right_sides_of_many_dimensions_are_batches(lead: tuple[int, ...]) -> None:
    """(3, 3, k) fits a 3 x 3 matrix both ways: torch.linalg's is meant."""
    S = _triangle()
    B = torch.randn(*lead, 3, 2, dtype=torch.float64)
    full = S.to_dense()
    want = torch.linalg.solve(full, B)
    torch.testing.assert_close(torch.linalg.solve(S, B), want)
    torch.testing.assert_close(torch.sparse.spsolve(S, B), want)
    torch.testing.assert_close(torch.linalg.solve_triangular(S, B, upper=False), want)
    right = torch.randn(*lead, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(
        torch.linalg.solve_triangular(S, right, upper=False, left=False),
        torch.linalg.solve_triangular(full, right, upper=False, left=False),
    )
    A = S @ S.t()
    torch.testing.assert_close(cg(A, B), torch.linalg.solve(A.to_dense(), B))


@pytest.mark.parametrize("shape", [(3, 1, 1, 0), (3, 2, 2), (2, 2)])
def test_right_sides_with_other_rows_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(SparseError, match="rows and the matrix 3"):
        torch.linalg.solve_triangular(_triangle(), torch.ones(shape, dtype=torch.float64), upper=False)


def test_batched_solves_have_gradients() -> None:
    S, B = _triangle(), torch.randn(3, 3, 2, dtype=torch.float64, requires_grad=True)
    v = S.values().clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda v, B: torch.linalg.solve_triangular(S.like(v), B, upper=False), (v, B)
    )


@pytest.mark.parametrize("name", ["to_sparse_bsr", "to_sparse_bsc"])
def test_blocks_that_do_not_fill_the_matrix(name: str) -> None:
    with pytest.raises(SparseError, match="don't fill"):
        getattr(SparseTensor.from_dense(torch.ones(3, 4)), name)((3, 3))
    assert getattr(SparseTensor.from_dense(torch.ones(3, 4)), name)((3, 2)).shape == (3, 4)
