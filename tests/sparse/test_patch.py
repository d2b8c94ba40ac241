"""patch(): existing torch.sparse code, unchanged, with the gradients of dense algebra and no dense matrix."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import warm
from gradmend.sparse.errors import SparseError
from gradmend.sparse.patch import known, patch

INDEX = torch.tensor([[0, 1, 1, 3, 1], [1, 0, 2, 2, 0]])  # unsorted, and (1, 0) twice
CROW, COL = torch.tensor([0, 1, 4, 4, 5]), torch.tensor([1, 0, 2, 0, 2])  # the same places, by rows
SIZE = (4, 3)
G = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def patched() -> Iterator[None]:
    with patch():
        yield


@pytest.fixture
def w() -> Tensor:
    return torch.tensor([0.5, -1.0, 2.0, 3.0, -0.7], dtype=torch.float64, requires_grad=True)


@pytest.fixture
def X() -> Tensor:
    return torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()


def coo(w: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(INDEX, w, SIZE)


def csr(w: Tensor) -> Tensor:
    return torch.sparse_csr_tensor(CROW, COL, w, SIZE)


def dense(w: Tensor, build: Callable[[Tensor], Tensor]) -> Tensor:
    row = INDEX[0] if build is coo else torch.tensor([0, 1, 1, 1, 3])
    col = INDEX[1] if build is coo else COL
    return torch.zeros(SIZE, dtype=w.dtype).index_put((row, col), w, accumulate=True)


ANY_LAYOUT: dict[str, Callable[[Any, Tensor], Any]] = {
    "mm": torch.mm,
    "matmul": torch.matmul,
    "@": lambda A, X: A @ X,
    "sparse.mm": lambda A, X: torch.sparse.mm(A, X) if A.layout != torch.strided else A @ X,
    "method mm": lambda A, X: A.mm(X),
    "mv": lambda A, X: torch.mv(A, X[:, 0]),
    "vector": lambda A, X: A @ X[:, 0],
    "dense @ sparse": lambda A, X: X.t() @ A.t(),
    "addmm": lambda A, X: torch.addmm(G, A, X, beta=0.5, alpha=2),
    "sparse.addmm": lambda A, X: (
        torch.sparse.addmm(G, A, X) if A.layout != torch.strided else torch.addmm(G, A, X)
    ),
    "linear": lambda A, X: F.linear(X.t(), A),
    "t": lambda A, X: A.t() @ G,
    "transpose": lambda A, X: A.transpose(0, 1) @ G,
    "sum": lambda A, X: A.sum(),
    "sum(0)": lambda A, X: A.sum(0),
    "sum(1)": lambda A, X: torch.sum(A, 1),
    "sum(-1, keepdim)": lambda A, X: A.sum(-1, keepdim=True),
    "tanh": lambda A, X: A.tanh() @ X,
    "scaled": lambda A, X: (A * 2) @ X,
    "times dense": lambda A, X: (A * G[:, :3]) @ X,
    "twice": lambda A, X: A @ X + (A @ X.relu()) * 3,
    "sparse @ sparse": lambda A, X: A @ (A.t() @ G),
    "mean": lambda A, X: A.mean(),
    "norm": lambda A, X: A.norm(),
    "index_select": lambda A, X: A.index_select(0, torch.tensor([1, 3, 1])) @ X,
    "row": lambda A, X: A[1],
    "slice": lambda A, X: A[1:3] @ X,
}
COO_ONLY: dict[str, Callable[[Any, Tensor], Any]] = {
    "T": lambda A, X: A.T @ G,
    "coalesce": lambda A, X: (A.coalesce() if A.layout != torch.strided else A) @ X,
    "sparse.sum": lambda A, X: torch.sparse.sum(A, 0) if A.layout != torch.strided else A.sum(0),
    "cat": lambda A, X: torch.cat([A, A * 2]) @ X,
    "to_dense": lambda A, X: A.to_dense() @ X if A.layout != torch.strided else A @ X,
    "native": lambda A, X: torch.sparse.mm(torch.neg(A), X) if A.layout != torch.strided else -A @ X,
}


def gradients(f: Callable[[Any, Tensor], Any], A: Any, w: Tensor, X: Tensor) -> tuple[Any, ...]:
    out = f(A, X)
    out = out if out.layout == torch.strided else out.to_dense()
    return torch.autograd.grad((out * 1.5).pow(2).sum(), [w, X], allow_unused=True)


def same(got: tuple[Any, ...], want: tuple[Any, ...]) -> None:
    for a, b in zip(got, want, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


CASES = [(coo, name) for name in (*ANY_LAYOUT, *COO_ONLY)] + [(csr, name) for name in ANY_LAYOUT]


@pytest.mark.parametrize(("build", "name"), CASES, ids=[f"{b.__name__} {n}" for b, n in CASES])
def test_gradients_equal_dense(build: Callable[[Tensor], Tensor], name: str, w: Tensor, X: Tensor) -> None:
    f = {**ANY_LAYOUT, **COO_ONLY}[name]
    want = gradients(f, dense(w, build), w, X)
    with patch():
        same(gradients(f, build(w), w, X), want)


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("build", [coo, csr])
def test_second_derivatives(build: Callable[[Tensor], Tensor], w: Tensor, X: Tensor) -> None:
    for f in (
        lambda w, X: build(w) @ X,
        lambda w, X: (build(w).t() @ G).sin(),
        lambda w, X: build(w * w).tanh() @ X,
    ):
        assert torch.autograd.gradcheck(f, (w, X))
        assert torch.autograd.gradgradcheck(f, (w, X))


@pytest.mark.parametrize("build", [coo, csr])
def test_tensors_built_before(build: Callable[[Tensor], Tensor], w: Tensor, X: Tensor) -> None:
    A = build(w * 1)
    want = gradients(torch.mm, dense(w, build), w, X)
    with patch():
        same(gradients(torch.mm, A, w, X), want)


def test_create_graph_on_a_coo_tensor_built_before_raises(w: Tensor, X: Tensor) -> None:
    A = coo(w)
    with patch(), pytest.raises(SparseError, match="a conversion did, or it is older than patch"):
        torch.autograd.grad((A @ X).sum(), w, create_graph=True)


@pytest.mark.usefixtures("patched")
def test_an_attribute_is_torchs_own_and_more_than_first_order_raises(w: Tensor, X: Tensor) -> None:
    out = coo(w).T @ G
    with pytest.raises(SparseError, match="create_graph=True"):
        torch.autograd.grad(out.pow(2).sum(), w, create_graph=True)


def test_create_graph_on_a_csr_tensor_built_before_is_right(w: Tensor, X: Tensor) -> None:
    def second(A: Tensor) -> Any:
        (g,) = torch.autograd.grad((A @ X).pow(3).sum(), w, create_graph=True)
        return torch.autograd.grad(g.pow(2).sum(), [w, X])

    want = second(dense(w, csr))
    A = csr(w)
    with patch():
        same(second(A), want)


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("build", [coo, csr])
def test_results_are_of_the_kind_torch_returns(
    build: Callable[[Tensor], Tensor], w: Tensor, X: Tensor
) -> None:
    A = build(w)
    layout = A.layout
    assert (A @ X).layout == torch.strided
    assert A.tanh().layout == layout and (A * 2).layout == layout
    assert A.sum(1, keepdim=True).layout == layout
    assert A.t().layout == (torch.sparse_coo if build is coo else torch.sparse_csc)
    assert A.t().t().layout == layout
    if build is coo:
        assert A.sum(0).layout == torch.sparse_coo and A.sum(0)._nnz() == 3
        assert not A.is_coalesced() and A.coalesce()._nnz() == 4


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("build", [coo, csr])
def test_hooks_and_retain_grad_of_the_sparse_tensor(
    build: Callable[[Tensor], Tensor], w: Tensor, X: Tensor
) -> None:
    A, seen = build(w), []
    A.register_hook(seen.append)
    if build is coo:  # torch itself can't retain a CSR gradient (2.13)
        A.retain_grad()
    (A @ X).sum().backward()
    (grad,) = seen
    assert grad.layout == A.layout
    if build is coo:
        assert A.grad is not None and torch.equal(A.grad.to_dense(), grad.to_dense())
    want = X.detach().sum(1).expand(SIZE)
    stored = dense(torch.ones_like(w), build) != 0
    torch.testing.assert_close(grad.to_dense(), want * stored)  # duplicates are not counted twice


def csc(w: Tensor) -> Tensor:
    return coo(w).to_sparse_csc()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("use", [lambda A, X: (A @ X).pow(2).sum(), lambda A, X: A.sum()], ids=["mm", "sum"])
@pytest.mark.parametrize("build", [coo, csr, csc])
def test_a_sparse_leaf_has_torchs_gradient_or_asked_for_that_of_its_entries(
    build: Callable[[Tensor], Tensor],
    use: Callable[[Tensor, Tensor], Tensor],
    masked: bool,
    w: Tensor,
    X: Tensor,
) -> None:
    A, B = (build(w.detach()).requires_grad_() for _ in range(2))
    use(A, X).backward()
    with patch(masked=masked):
        use(B, X).backward()
        use(B, X).backward()  # gradients accumulate
    assert A.grad is not None and B.grad is not None
    stored = (A.detach().to_dense() != 0) if masked else torch.ones(SIZE, dtype=torch.bool)
    assert B.grad.layout == (torch.strided if not masked else torch.sparse_coo if build is csc else A.layout)
    torch.testing.assert_close(B.grad.to_dense(), 2 * A.grad.to_dense() * stored)


def test_masked_patches_nest_and_end() -> None:
    def layout() -> torch.layout:
        A = torch.eye(3).to_sparse().requires_grad_()
        A.sum().backward()
        assert A.grad is not None
        return A.grad.layout

    with patch():
        with patch(masked=True):
            assert layout() == torch.sparse_coo
        assert layout() == torch.strided
    assert layout() == torch.strided


class Cut(torch.autograd.Function):
    """Its gradient is undefined."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None


UNDEFINED: dict[str, Callable[[Any, Any], Any]] = {
    "mm": torch.mm,
    "neg": lambda A, X: (-A).to_dense(),
    "abs": lambda A, X: A.abs().to_dense(),
    "softmax": lambda A, X: torch.sparse.softmax(A, 1).to_dense(),
    "sum": lambda A, X: A.sum(),
    "sparse @ sparse": lambda A, X: (A @ A.t()).to_dense(),
}


@pytest.mark.parametrize("name", UNDEFINED)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("leaf", [False, True])
def test_an_undefined_gradient_stays_undefined(
    name: str, leaf: bool, masked: bool, w: Tensor, X: Tensor
) -> None:
    with patch(masked=masked):
        A = coo(w.detach()).coalesce().requires_grad_() if leaf else coo(w)
        end = A if leaf else w
        found = torch.autograd.grad(Cut.apply(UNDEFINED[name](A, X)).sum(), (end, X), allow_unused=True)
    assert found == (None, None)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_gradcheck_of_a_leaf_passes(layout: torch.layout, masked: bool) -> None:
    A = torch.eye(3).double().to_sparse(layout=layout).requires_grad_()
    B = torch.ones(3, 2).double().requires_grad_()
    with patch(masked=masked):
        assert torch.autograd.gradcheck(torch.sparse.mm, (A, B), masked=True)


def test_tensors_without_sparse_dimensions_are_torchs_own() -> None:
    def gradient() -> Tensor:
        v = torch.tensor([2.0], requires_grad=True)
        torch.relu(torch.sparse_coo_tensor(torch.zeros(0, 1, dtype=torch.long), v, ())).to_dense().backward()
        scalar = torch.tensor(2.0).to_sparse().requires_grad_()
        (scalar * 2).to_dense().backward()
        assert v.grad is not None and scalar.grad is not None
        return torch.stack([v.grad[0], scalar.grad.to_dense()])

    want = gradient()
    with patch():
        assert torch.equal(gradient(), want)


@pytest.mark.parametrize("places", [[[0, 1, 1], [1, 0, 1]], [[0], [1]], [[1, 0], [1, 0]]])
def test_a_gradient_of_other_places_reaches_values_with_dense_dimensions(places: list[list[int]]) -> None:
    G = torch.arange(12.0).view(2, 2, 3)
    index = torch.tensor(places)
    arriving = torch.sparse_coo_tensor(index, G[tuple(index)], (2, 2, 3))
    flat = torch.sparse_coo_tensor(index[:1], G.sum(1)[index[0]], (2, 2, 3)[::2])

    def gradients() -> list[Tensor]:
        v = torch.ones(2, 3, requires_grad=True)
        torch.sparse_coo_tensor([[0, 1], [1, 0]], v, (2, 2, 3)).backward(arriving)
        u = torch.ones(2, 3, requires_grad=True)
        torch.sparse_coo_tensor([[0, 1]], u, (2, 3)).to_sparse().backward(flat.to_dense().to_sparse(1))
        assert v.grad is not None and u.grad is not None
        return [v.grad, u.grad]

    want = gradients()
    with patch():
        torch.testing.assert_close(gradients(), want)


def test_a_gradient_with_more_sparse_dimensions_is_read_at_the_places() -> None:
    G = torch.arange(12.0).view(2, 2, 3)
    v = torch.ones(2, 3, requires_grad=True)
    with patch():
        A = torch.sparse_coo_tensor([[0, 1], [1, 0]], v, (2, 2, 3))
        A.backward(G.to_sparse())
    assert v.grad is not None and torch.equal(v.grad, G[[0, 1], [1, 0]])


def test_every_spelling_of_the_constructor_is_answered() -> None:
    spelled: dict[str, Callable[[], Tensor]] = {
        "size=": lambda: torch.sparse_coo_tensor(size=(2, 3)),
        "a size": lambda: torch.sparse_coo_tensor((2, 3), dtype=torch.float64),
        "a size that trains": lambda: torch.sparse_coo_tensor([2, 3], requires_grad=True),
        "by name": lambda: torch.sparse_coo_tensor(indices=[[0], [1]], values=[1.0], size=(2, 3)),
    }
    for name, call in spelled.items():
        want = call()
        with patch():
            got = call()
        assert (got.shape, got.dtype, got.requires_grad) == (want.shape, want.dtype, want.requires_grad), name
    with pytest.raises(TypeError) as plain:
        torch.sparse_coo_tensor()
    with patch(), pytest.raises(TypeError) as ours:
        torch.sparse_coo_tensor()
    assert str(ours.value) == str(plain.value)


def test_a_product_of_csr_tensors_keeps_the_gradient_of_places_that_one_does_not_store() -> None:
    def gradient() -> Tensor:
        x = torch.tensor([[1.0, 0], [0, 0]]).to_sparse_csr().requires_grad_()
        y = torch.tensor([[2.0, 3], [0, 0]]).to_sparse_csr()
        (x * y).backward(torch.ones(2, 2).to_sparse_csr())
        assert x.grad is not None
        return x.grad.to_dense()

    want = gradient()
    with patch():
        assert torch.equal(gradient(), want) and want.tolist() == [[2, 3], [0, 0]]


@pytest.mark.parametrize("trains", [False, True])
def test_coalesce_of_csr_raises_torchs_error(trains: bool) -> None:
    A = torch.eye(3).to_sparse_csr().requires_grad_(trains)
    with patch(), pytest.raises(RuntimeError, match=r"^coalesce expected sparse coordinate tensor layout"):
        A.coalesce()


def test_a_hook_on_a_csr_tensor_built_before_is_still_called(w: Tensor, X: Tensor) -> None:
    A, seen = torch.sparse_csr_tensor(CROW, torch.tensor([1, 0, 1, 2, 2]), w, SIZE), []
    A.register_hook(lambda g: seen.append(1))
    with patch():
        (A @ X).sum().backward()
    assert seen == [1]


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("build", ["coo", "csr"])
def test_backward_never_builds_the_dense_matrix(build: str) -> None:
    n = 1_000_000  # dense: 4 TB
    row = torch.arange(0, n, 1000)
    w = torch.ones(1000, requires_grad=True)
    if build == "coo":
        A = torch.sparse_coo_tensor(torch.stack([row, row.flip(0)]), w, (n, n))
    else:
        crow = torch.zeros(n + 1, dtype=torch.int64)
        crow[row + 1] = 1
        A = torch.sparse_csr_tensor(crow.cumsum(0), row.flip(0), w, (n, n))
    X = torch.ones(n, 2, requires_grad=True)
    (A @ X).sum().backward()
    assert w.grad is not None and torch.equal(w.grad, torch.full((1000,), 2.0))
    w.grad = None
    A.sum(1, keepdim=True).to_dense().sum().backward()
    assert w.grad is not None and torch.equal(w.grad, torch.ones(1000))


@pytest.mark.usefixtures("patched")
def test_hybrid_tensors(w: Tensor) -> None:
    values = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    torch.sparse_coo_tensor(INDEX, values, (*SIZE, 2)).sum().backward()
    assert values.grad is not None and torch.equal(values.grad, torch.ones(5, 2, dtype=torch.float64))


@pytest.mark.usefixtures("patched")
def test_constructor_options(w: Tensor, X: Tensor) -> None:
    A = torch.sparse_coo_tensor(indices=INDEX, values=w, size=SIZE, dtype=torch.float32)
    assert A.dtype == torch.float32
    (A @ X.detach().float()).sum().backward()
    assert w.grad is not None and w.grad.dtype == torch.float64
    assert torch.sparse_coo_tensor(INDEX, w).shape == SIZE
    assert torch.sparse_coo_tensor(INDEX.tolist(), w, SIZE).requires_grad
    assert torch.sparse_coo_tensor(INDEX, [1.0] * 5, SIZE).is_leaf
    assert torch.sparse_coo_tensor(SIZE)._nnz() == 0
    leaf = torch.sparse_coo_tensor(INDEX, w, SIZE, requires_grad=True)
    assert leaf.requires_grad
    B = torch.sparse_compressed_tensor(CROW, COL, w, SIZE, layout=torch.sparse_csr)
    assert B.layout == torch.sparse_csr and torch.sparse_csr_tensor(CROW, COL, w).shape == (4, 3)
    C = torch.sparse_csr_tensor(crow_indices=CROW, col_indices=COL, values=w, size=SIZE)
    torch.testing.assert_close((C @ X), (B @ X))
    with pytest.raises(RuntimeError, match="is not satisfied"):
        torch.sparse_coo_tensor(INDEX, w, (4, 3, 5))


@pytest.mark.usefixtures("patched")
def test_rebuilding_each_step_sorts_once_and_follows_a_changed_index(w: Tensor, X: Tensor) -> None:
    index = INDEX.clone()
    first = known.know(torch.sparse_coo_tensor(index, w, SIZE)).pattern
    assert known.know(torch.sparse_coo_tensor(index, w, SIZE)).pattern is first
    index[1, 0] = 2
    moved = torch.sparse_coo_tensor(index, w, SIZE)
    assert known.know(moved).pattern is not first
    torch.testing.assert_close(
        moved @ X, torch.zeros(SIZE, dtype=w.dtype).index_put(tuple(index), w, accumulate=True) @ X
    )


@pytest.mark.usefixtures("patched")
def test_nothing_is_kept_alive(w: Tensor, X: Tensor) -> None:
    gc.collect()
    before = len(known._known), len(known._places)
    for build in (coo, csr):
        leaf = build(w.detach()).requires_grad_()
        for _ in range(20):
            (build(w) @ X).sum().backward()
            (leaf @ X).sum().backward()
        del leaf
    gc.collect()
    assert len(known._known) == before[0]
    assert len(known._places) <= before[1] + 2  # of INDEX and COL, which this module keeps


@pytest.mark.usefixtures("patched")
def test_every_optimizer_trains_values_rebuilt_each_step(X: Tensor) -> None:
    target = torch.randn(4, 4, dtype=torch.float64)
    for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop):
        values = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
        optimizer = kind([values], lr=0.05)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = (coo(values) @ X.detach() - target).pow(2).sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_([values], 1.0)
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]


def test_undone_to_the_last_name() -> None:
    homes = (torch, torch.Tensor, torch.sparse, F)
    before = [dict(vars(h)) for h in homes]
    with patch() as outer:
        assert torch.mm is not before[0]["mm"]
        with patch():
            pass
        assert torch.mm is not before[0]["mm"]
        assert "in effect" in repr(outer)
    assert "undone" in repr(outer)
    outer.undo()
    for home, names in zip(homes, before, strict=True):
        assert {k for k in vars(home) if vars(home)[k] is not names.get(k)} == set()
        assert set(names) <= set(vars(home))


def test_for_good_until_undone(w: Tensor, X: Tensor) -> None:
    p = patch()
    try:
        coo(w).sum(0).to_dense().sum().backward()  # "expand is unsupported" without us
        assert w.grad is not None
    finally:
        p.undo()
    with pytest.raises(RuntimeError, match="expand is unsupported for Sparse tensors"):
        coo(w).sum(0).to_dense().sum().backward()


@pytest.mark.usefixtures("patched")
def test_dense_code_scripts_and_transforms_as_before(X: Tensor) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.mm(x, y).sum(0)

    a, b = torch.randn(3, 3), torch.randn(3, 3)
    torch.testing.assert_close(torch.jit.script(f)(a, b), f(a, b))
    torch.testing.assert_close(torch.func.grad(lambda a: f(a, b).sum())(a), b.sum(1).expand(3, 3))
    assert torch.mm(a, b, out=torch.empty(3, 3)).shape == (3, 3)


@pytest.mark.usefixtures("patched")
def test_without_gradients_torch_answers(w: Tensor, X: Tensor) -> None:
    with torch.no_grad():
        A = coo(w)
        assert not A.requires_grad
        torch.testing.assert_close(A @ X, dense(w, coo) @ X)


def test_compiling_and_scripting_are_the_same_afterwards(tmp_path: Path) -> None:
    """In a process of its own: torch.compile and torch.jit look at torch's functions once, and here while patched."""
    program = """
import torch
from gradmend.sparse.patch import patch

def f(x, y):
    return torch.mm(x, y).div(2).tanh()

a, b = torch.randn(3, 3), torch.randn(3, 3)
with patch():
    torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(a, b), f(a, b))
    torch.jit.script(f)
torch._dynamo.reset()
torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(a, b), f(a, b))
from gradmend.sparse import Pattern, SparseTensor
S = SparseTensor(Pattern([[0, 1], [1, 0]], (2, 2)), torch.ones(2))
torch.testing.assert_close(torch.compile(torch.sum, backend="eager", fullgraph=True)(S, 0), torch.ones(2))
fresh = [eval(f"lambda x: x + {i}") for i in range(3000)]  # would inherit the ids of functions set free
from torch.jit import _builtins
assert not any(_builtins._find_builtin(g) for g in fresh)
"""
    script = tmp_path / "program.py"  # torch.jit reads the source
    script.write_text(program)
    done = warm.run([sys.executable, str(script)])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["to_sparse", "to_sparse_csr", "to_sparse_csc", "rows"])
def test_a_dense_leaf_made_sparse_has_second_derivatives(name: str) -> None:
    torch.manual_seed(0)
    W = torch.randn(2, 3, dtype=torch.float64)
    W[0, 1] = 0
    stored = torch.ones_like(W) if name == "rows" else (W != 0).double()
    W.requires_grad_()
    X = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)

    def derivatives(A: Tensor) -> list[Tensor]:
        y = (A @ X).pow(3).sum()
        d_W, d_X = torch.autograd.grad(y, (W, X), create_graph=True)
        first = [d_W * stored, d_X]
        both = torch.autograd.grad(y + sum(g.square().sum() for g in first), (W, X))
        return [*first, both[0] * stored, both[1]]

    with patch(masked=True):
        A = W.to_sparse(1) if name == "rows" else getattr(W, name)()
        torch.testing.assert_close(derivatives(A), derivatives(W))
    with patch():
        v = torch.ones(2, requires_grad=True)
        B = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 2]]), v, (2, 3)).to_sparse_csr()
        with pytest.raises(SparseError, match="a conversion did, or it is older"):
            torch.autograd.grad((B @ torch.ones(3, 2)).pow(2).sum(), v, create_graph=True)
