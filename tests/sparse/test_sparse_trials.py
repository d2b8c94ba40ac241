"""Programs that new users wrote: each once ran wrong, ended the process, or failed without a word that helps."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradmend.sparse.nn as snn
from gradmend.sparse import Pattern, PatternError, SparseError, SparseTensor, patch, sddmm
from gradmend.sparse.optim import RowAdam

I = torch.tensor([[0, 1, 1], [2, 0, 2]])  # noqa: E741


def small(values: Tensor | None = None) -> SparseTensor:
    made = torch.tensor([3.0, 4.0, 5.0]) if values is None else values
    return SparseTensor.from_coo(I, made, (2, 3))


def through_a_file(x: Any) -> Any:
    f = io.BytesIO()
    torch.save(x, f)
    f.seek(0)
    return torch.load(f, weights_only=True)


# Made once, trained for ever

ORDERS = {
    "sorted": [[0, 1, 2], [1, 0, 2]],
    "unsorted": [[1, 0, 2], [0, 1, 2]],
    "repeated": [[0, 0, 2], [1, 1, 2]],
}
BUILDERS = {
    "coo": lambda i, w: SparseTensor.from_coo(i, w, (4, 4)),
    "edges": lambda i, w: SparseTensor.from_edge_index(i, w, 4),
    "csc": lambda i, w: SparseTensor.from_csc([0, 1, 2, 3, 3], [2, 0, 1], w, (4, 4)),
    "dense": lambda i, w: SparseTensor.from_dense(w, torch.eye(3, dtype=torch.bool)),
}


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_tensor_made_once_follows_the_optimizer(order: str, build: str, retain: bool) -> None:
    index, make = torch.tensor(ORDERS[order]), BUILDERS[build]
    start = torch.ones(3, 3) if build == "dense" else torch.ones(3)

    def train(once: bool) -> list[float]:
        w = nn.Parameter(start.clone())
        S = make(index, w)
        optimizer, losses = torch.optim.SGD([w], 0.1), []
        for _ in range(4):
            if not once:
                S = make(index, w)
            loss = ((S @ torch.ones(S.shape[1], 1)) ** 2).sum()
            optimizer.zero_grad()
            loss.backward(retain_graph=retain)
            optimizer.step()
            losses.append(loss.item())
        return losses

    once = train(True)
    assert once == train(False) and once[-1] < once[0]


def test_a_module_may_hold_a_tensor_made_once() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))
            self.S = SparseTensor.from_coo([[1, 0, 1], [0, 2, 0]], self.w, (2, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.S @ x

    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    losses = []
    for _ in range(5):
        loss = model(torch.ones(3, 1)).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]


def test_the_gradient_of_repeated_places_is_told_once() -> None:
    w = torch.ones(3, requires_grad=True)
    S = SparseTensor.from_coo([[0, 0, 1], [1, 1, 0]], w, (2, 2))
    S.pow(2).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [4, 4, 2]
    assert S.grad is not None and S.grad.to_dense().tolist() == [[0, 4], [2, 0]]


# Memory


def test_writes_to_the_callers_indices_change_nothing() -> None:
    n = 2000
    index = Pattern.random((n, n), density=0.005).indices()
    X = torch.randn(n, 16)
    values = torch.randn(index.shape[1])
    table = index.numpy()
    S, T = SparseTensor.from_coo(index, values, (n, n)), SparseTensor.from_coo(table, values, (n, n))
    want = S @ X
    index += 10**7
    table -= 5
    torch.testing.assert_close(S @ X, want)
    torch.testing.assert_close(T @ X, want)


def test_what_is_handed_out_can_not_change_a_pattern() -> None:
    S = small()
    P, want = S.pattern, S.to_dense()
    S.t() @ torch.ones(2, 1)
    handed = [S.indices(), S.crow_indices(), S.col_indices(), P.indices(), P.keys(), P.ptr, P.row, P.col]
    handed += [*P.transposed(), *S.to_edge_index()[:1], S.to_sparse_coo().indices()]
    handed += [
        S.to_sparse_csr().crow_indices(),
        S.to_sparse_csr().col_indices(),
        S.to_sparse_csc().row_indices(),
    ]
    for t in handed:
        t.fill_(10**7)
        t.numpy()[...] = -5
    torch.testing.assert_close(S.to_dense(), want)
    torch.testing.assert_close(S @ torch.eye(3), want)
    torch.testing.assert_close(S.t() @ torch.eye(2), want.t())
    torch.testing.assert_close(S.sum(0), want.sum(0))


def test_values_that_lost_their_memory_are_not_read() -> None:
    v = torch.ones(3)
    S = small(v)
    v.data = v.data[:1].clone()
    with pytest.raises(SparseError, match="give one value per entry"):
        S @ torch.ones(3, 1)
    P = Pattern.random((300, 300), nnz=9000)
    w, X = torch.ones(9000), torch.randn(300, 32)
    X.untyped_storage().resize_(0)
    with pytest.raises(SparseError, match="freed or made smaller"):
        SparseTensor(P, w) @ X


# Sampled products


def test_sampled_products_look_at_shapes() -> None:
    n = 2000
    P = Pattern.random((n, n), density=0.005)
    S = SparseTensor(P, torch.zeros(P.nnz))
    for A, B in ((100, n), (n, 100), (n + 6, n)):
        left, right = torch.randn(A, 16), torch.randn(16, B)
        for call in (lambda a, b: sddmm(P, a, b), lambda a, b: torch.sparse.sampled_addmm(S, a, b)):
            with pytest.raises(SparseError, match="can't be sampled by a pattern"):
                call(left, right)
    with pytest.raises(SparseError, match="takes matrices"):
        sddmm(P, torch.randn(n), torch.randn(16, n))


@pytest.mark.parametrize("size", [40, 700])  # one product for the batch, and one after the other
def test_sampled_products_of_heads(size: int) -> None:
    P = Pattern.random((size, size + 3), density=0.1)
    at = tuple(P.indices())
    A = torch.randn(2, 3, size, 8, dtype=torch.float64, requires_grad=True)
    B = torch.randn(3, 8, size + 3, dtype=torch.float64, requires_grad=True)
    S, want = sddmm(P, A, B), (A @ B)[(..., *at)]
    assert S.shape == (2, 3, size, size + 3)
    torch.testing.assert_close(S.values(), want)
    weight = torch.randn_like(want)
    ours = torch.autograd.grad((S.values().pow(2) * weight).sum(), [A, B])
    theirs = torch.autograd.grad((want.pow(2) * weight).sum(), [A, B])
    torch.testing.assert_close(ours, theirs)
    v = torch.randn(P.nnz, dtype=torch.float64)
    added = torch.sparse.sampled_addmm(SparseTensor(P, v), A, B, beta=2.0, alpha=0.5)
    torch.testing.assert_close(added.values(), 0.5 * want + 2 * v)


def test_attention_of_heads_equals_dense() -> None:
    torch.manual_seed(0)
    P = Pattern.random((12, 12), density=0.4)
    P = P | Pattern([list(range(12))] * 2, (12, 12))
    q, k, v = (torch.randn(2, 4, 12, 8, dtype=torch.float64) for _ in range(3))
    out = (sddmm(P, q, k.mT) / 8**0.5).softmax(-1) @ v
    mask = torch.zeros(12, 12, dtype=torch.bool)
    mask[tuple(P.indices())] = True
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, attn_mask=mask))


def test_bmm_of_three_sparse_dimensions() -> None:
    g = torch.Generator().manual_seed(0)
    P, Q = Pattern.random((2, 3, 4), nnz=9, generator=g), Pattern.random((2, 4, 5), nnz=11, generator=g)
    v, w = (torch.randn(p.nnz, dtype=torch.float64, requires_grad=True) for p in (P, Q))
    S, T, X = SparseTensor(P, v), SparseTensor(Q, w), torch.randn(2, 4, 2, dtype=torch.float64)
    D, E = S.to_dense(), T.to_dense()
    torch.testing.assert_close(torch.bmm(S, X), D @ X)
    torch.testing.assert_close(torch.bmm(X.mT, T), X.mT @ E)
    torch.testing.assert_close(torch.bmm(S, T).to_dense(), D @ E)
    torch.testing.assert_close(S[:1] @ X, D[:1] @ X)
    for ours, theirs in ((torch.bmm(S, X), D @ X), (torch.bmm(S, T).to_dense(), D @ E)):
        g1 = torch.autograd.grad(ours.pow(2).sum(), v, retain_graph=True)
        torch.testing.assert_close(g1, torch.autograd.grad(theirs.pow(2).sum(), v, retain_graph=True))
    with pytest.raises(SparseError):
        torch.bmm(S, torch.ones(3, 4, 2, dtype=torch.float64))


# torch's habits


def test_a_parameter_is_refused_by_name() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(small())  # type: ignore[arg-type]

    with pytest.raises(SparseError, match="SparseWeight"):
        Model()
    with pytest.raises(
        TypeError, match=r"S\.values\(\) or the parameters of a gradmend\.sparse\.nn\.SparseWeight"
    ):
        torch.optim.SGD([small()], 0.1)  # type: ignore[list-item]


def test_prod_keeps_its_graph_where_rows_are_not_full() -> None:
    v = torch.tensor([3.0, 4.0, 5.0], requires_grad=True)
    assert torch.autograd.grad(small(v).prod(1).sum(), v)[0].tolist() == [0, 0, 0]


def test_repeat_tile_and_expand() -> None:
    v = torch.tensor([3.0, 4.0, 5.0], dtype=torch.float64, requires_grad=True)
    S = small(v)
    D = S.to_dense()
    pairs = [
        (S.repeat(2, 1), D.repeat(2, 1)),
        (S.repeat(2, 3, 2), D.repeat(2, 3, 2)),
        (torch.tile(S, (2,)), torch.tile(D, (2,))),
        (S.unsqueeze(0).expand(2, 2, 3), D.expand(2, 2, 3)),
        (S.expand(4, -1, 3), D.expand(4, 2, 3)),
        (S[:, :1].expand(2, 5), D[:, :1].expand(2, 5)),
        (torch.broadcast_to(S, (2, 2, 3)), D.expand(2, 2, 3)),
        (S.roll(1, 1), D.roll(1, 1)),
        (S.roll((1, -2), (0, 1)), D.roll((1, -2), (0, 1))),
        (S.roll(4), D.roll(4)),
    ]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.to_dense(), theirs)
        weight = torch.randn_like(theirs)
        got = torch.autograd.grad((ours.to_dense().pow(2) * weight).sum(), v, retain_graph=True)
        torch.testing.assert_close(
            got, torch.autograd.grad((theirs.pow(2) * weight).sum(), v, retain_graph=True)
        )
    for wrong in (
        lambda: S.expand(2, 4),
        lambda: S.repeat(2),
        lambda: S.roll((1, 2), 0),
        lambda: S.repeat(-1, 1),
    ):
        with pytest.raises(SparseError):
            wrong()


def test_double_backward_after_coalesce_under_patch() -> None:
    v = torch.tensor([3.0, 4.0, 5.0], requires_grad=True)

    def twice(A: Tensor) -> Tensor:
        (g,) = torch.autograd.grad((A @ torch.ones(3, 2)).pow(2).sum(), v, create_graph=True)
        return torch.autograd.grad(g.sum(), v)[0]

    with patch():
        got = twice(torch.sparse_coo_tensor(I, v, (2, 3)).coalesce())
    torch.testing.assert_close(got, twice(torch.zeros(2, 3).index_put(tuple(I), v)))


def test_autocast_as_linear() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        for layer in (snn.SparseLinear(8, 4, 0.5), snn.SparseLinear(8, 4, 0.5, bias=False), nn.Linear(8, 4)):
            assert layer(torch.ones(2, 8)).dtype == torch.bfloat16
        assert torch.addmm(torch.ones(2, 1), small(), torch.ones(3, 1)).dtype == torch.bfloat16


def test_files_are_read_with_weights_only() -> None:
    S = SparseTensor.from_coo([[1, 0, 1], [0, 2, 0]], torch.tensor([1.0, 2.0, 3.0]), (2, 3))
    assert torch.equal(through_a_file(S).to_dense(), S.to_dense())
    assert through_a_file(S.pattern) == S.pattern
    layer = snn.SparseLinear(4, 3, 0.5)
    state = through_a_file(layer.state_dict())
    other = snn.SparseLinear(4, 3, 0.9)
    other.load_state_dict(state)
    assert torch.equal(other.weight().to_dense(), layer.weight().to_dense())


def test_a_damaged_file_is_refused() -> None:
    S = small()
    S.pattern._indices[0, 2] = 10**7  # what no caller can do: a file can
    with pytest.raises(PatternError):
        through_a_file(S)


def test_another_number_of_entries_restores_the_pattern() -> None:
    a, b = snn.SparseLinear(8, 8, 0.25), snn.SparseLinear(8, 8, 0.5)
    held = a.weight.values
    a.load_state_dict(b.state_dict())
    assert a.weight.values is held and a.weight.pattern == b.weight.pattern
    assert torch.equal(a.weight().to_dense(), b.weight().to_dense())
    optimizer = torch.optim.SGD(a.parameters(), 0.1)
    a(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    with pytest.raises(PatternError, match="saved pattern is"):
        snn.SparseLinear(9, 8, 0.25).load_state_dict(b.state_dict())


class Buffered(nn.Module):
    def __init__(self, S: SparseTensor) -> None:
        super().__init__()
        self.register_buffer("A", S)


def test_buffers_are_saved_loaded_moved_and_emptied() -> None:
    from copy import deepcopy

    ours, other = Buffered(small()), Buffered(SparseTensor.from_coo([[0], [0]], torch.ones(1), (2, 3)))
    other.load_state_dict(through_a_file(ours.state_dict()))
    assert torch.equal(other.A.to_dense(), ours.A.to_dense())
    other.A._given.fill_(9)
    assert ours.A.to_dense().max() == 5  # loading copies
    assert deepcopy(ours).double().A.dtype == torch.float64
    assert ours.to_empty(device="cpu").A.shape == (2, 3)


def test_meta_then_real() -> None:
    with torch.device("meta"):
        layer = snn.SparseLinear(8, 6, 0.5)
        assert layer(torch.ones(2, 8)).shape == (2, 6)
    assert layer.weight.values.is_meta and layer.weight.pattern.device.type == "cpu"
    real = layer.to_empty(device="cpu")
    nn.init.ones_(real.weight.values)
    nn.init.zeros_(real.bias)
    torch.testing.assert_close(real(torch.ones(1, 8)), real.weight().sum(1)[None])


def test_short_pointers_and_long_features_are_refused() -> None:
    with pytest.raises(PatternError, match="pointers are for 1 rows"):
        SparseTensor.from_csr(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), (2, 3))
    for how in ("sum", "mean", "max"):
        with pytest.raises(SparseError):
            small().propagate(torch.ones(9, 2), how)
    with pytest.raises(SparseError, match="don't broadcast"):
        SparseTensor(small().pattern, torch.randn(3, 3), batch_dims=1) @ torch.randn(2, 3, 4)


def test_autograd_grad_of_a_sparse_tensor_means_its_values() -> None:
    S = small(torch.tensor([3.0, 4.0, 5.0], requires_grad=True))
    (g,) = torch.autograd.grad(S.pow(2).sum(), S)
    assert isinstance(g, SparseTensor) and g.values().tolist() == [6, 8, 10]
    T = S * 2
    (g,) = torch.autograd.grad(T.pow(2).sum(), T)
    assert g.values().tolist() == [12, 16, 20]
    assert torch.autograd.grad(S.sum(), [S, torch.ones(1, requires_grad=True)], allow_unused=True)[1] is None


# Transforms

P3 = Pattern(I, (2, 3))


@pytest.mark.parametrize("count", [1, 3, 4])  # 3: as many as there are entries
def test_vmap_returns_and_takes_sparse_tensors(count: int) -> None:
    v, X = torch.randn(count, 3), torch.randn(3, 2)
    B = SparseTensor(P3, v, batch_dims=1)
    S = torch.vmap(lambda x: SparseTensor(P3, x) * 2)(v)
    assert S.shape == (count, 2, 3)
    torch.testing.assert_close(S.to_dense(), B.to_dense() * 2)
    torch.testing.assert_close(S @ X, B.to_dense() * 2 @ X)
    torch.testing.assert_close(torch.vmap(lambda s: s @ X)(B), B.to_dense() @ X)
    torch.testing.assert_close(torch.vmap(lambda s: s.relu())(B).to_dense(), B.to_dense().relu())
    same = torch.vmap(lambda x: SparseTensor(P3, torch.ones(3)))(v)
    assert same.shape == (count, 2, 3)
    if count > 1:
        with pytest.raises(SparseError, match="out_dims=0"):
            torch.vmap(lambda x: SparseTensor(P3, x), out_dims=1)(v)
    with pytest.raises(SparseError, match="can't go over the entries"):
        torch.vmap(lambda s: s @ X, in_dims=1)(B)


def test_vmap_nested_and_jacobians() -> None:
    v, X = torch.randn(2, 4, 3, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    B = SparseTensor(P3, v, batch_dims=2)
    assert torch.vmap(torch.vmap(lambda x: SparseTensor(P3, x).relu()))(v).shape == (2, 4, 2, 3)
    torch.testing.assert_close(torch.vmap(torch.vmap(lambda s: s @ X))(B), B.to_dense() @ X)
    torch.testing.assert_close(torch.vmap(lambda s: s @ X, in_dims=1)(B), B.to_dense().transpose(0, 1) @ X)
    S = SparseTensor(P3, v[0, 0])
    for jac in (torch.func.jacrev, torch.func.jacfwd):
        J = jac(lambda S: (S @ X).sum(1))(S)
        want = jac(lambda D: (D @ X).sum(1))(S.to_dense())
        torch.testing.assert_close(J.values(), want[(..., *I)])
    with pytest.raises(SparseError, match="with respect to a sparse tensor"):
        torch.func.hessian(lambda S: (S @ X).pow(2).sum())(S)


# Optimizers and clipping


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-8])
def test_row_adam_on_dense_gradients_is_adam_to_the_last_bit(scale: float, decay: float) -> None:
    torch.manual_seed(0)
    a, b = (nn.Parameter(torch.linspace(-1, 1, 40)) for _ in range(2))
    theirs = torch.optim.AdamW([b], lr=1e-2, weight_decay=decay) if decay else torch.optim.Adam([b], lr=1e-2)
    ours = RowAdam([a], lr=1e-2, weight_decay=decay)
    for _ in range(7):
        a.grad = torch.randn(40) * scale
        b.grad = a.grad.clone()
        ours.step()
        theirs.step()
        assert torch.equal(a, b)


def mixed() -> tuple[list[Any], list[Tensor]]:
    """Parameters with dense, repeated COO and CSR gradients; and the same dense."""
    torch.manual_seed(0)
    table = nn.Embedding(10, 4, sparse=True)
    table(torch.tensor([1, 3, 1])).pow(2).sum().backward()
    dense = nn.Parameter(torch.ones(3))
    dense.grad = torch.tensor([1.0, -20.0, 3.0])
    csr = torch.tensor([[0.0, 5.0, 0.0], [7.0, 0.0, 0.0]]).to_sparse_csr().requires_grad_()
    csr.grad = csr.detach().clone()
    S = small(torch.tensor([3.0, 4.0, 5.0], requires_grad=True))
    S.pow(2).sum().backward()
    params = [table.weight, dense, csr, S]
    assert S.grad is not None
    grads = [table.weight.grad.to_dense(), dense.grad.clone(), csr.grad.to_dense(), S.grad.to_dense()]
    copies = []
    for g in grads:
        copies.append(torch.zeros_like(g).requires_grad_())
        copies[-1].grad = g.clone()
    return params, copies


@pytest.mark.parametrize("kind", [2.0, 1.0, float("inf")])
@pytest.mark.parametrize("limit", [1.0, 1e6])
def test_clipping_by_norm_takes_every_kind_of_gradient(kind: float, limit: float) -> None:
    params, dense = mixed()
    torch.testing.assert_close(
        snn.get_total_norm([p.grad for p in params], kind),
        torch.nn.utils.get_total_norm([p.grad for p in dense], kind),
    )
    got = snn.clip_grad_norm_(params, limit, kind)
    want = torch.nn.utils.clip_grad_norm_(dense, limit, kind)
    torch.testing.assert_close(got, want)
    for p, d in zip(params, dense, strict=True):
        torch.testing.assert_close(p.grad.to_dense(), d.grad)


def test_clipping_by_value_clips_sums_of_repeats() -> None:
    params, dense = mixed()
    snn.clip_grad_value_(params, 2.5)
    torch.nn.utils.clip_grad_value_(dense, 2.5)
    for p, d in zip(params, dense, strict=True):
        torch.testing.assert_close(p.grad.to_dense(), d.grad)
    dense[0].grad = torch.full_like(dense[0], float("nan"))
    with pytest.raises(RuntimeError, match="non-finite"):
        snn.clip_grad_norm_(dense, 1.0, error_if_nonfinite=True)


# Names people asked for


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_topk_counts_the_zeros(dim: int, largest: bool) -> None:
    g = torch.Generator().manual_seed(3)
    P = Pattern.random((6, 7), density=0.6, generator=g)
    v = torch.randn(P.nnz, generator=g, dtype=torch.float64).requires_grad_()
    S = SparseTensor(P, v)
    D = S.to_dense()
    for k in (0, 1, 3, 6):
        got, want = S.topk(k, dim, largest), D.topk(k, dim, largest)
        torch.testing.assert_close(got.values, want.values)
        torch.testing.assert_close(D.gather(dim, got.indices), got.values)  # ties may be told in any order
        lines = got.indices.movedim(dim, -1)
        assert all(len(set(line)) == k for line in lines.reshape(lines.shape[0], k).tolist())
        weight = torch.rand_like(want.values)
        ours = torch.autograd.grad((got.values.pow(2) * weight).sum(), v, retain_graph=True)
        torch.testing.assert_close(
            ours, torch.autograd.grad((want.values.pow(2) * weight).sum(), v, retain_graph=True)
        )
    with pytest.raises(SparseError):
        S.topk(9, dim)


def test_cumsum_outer_and_losses() -> None:
    v, w = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    S, T = small(v), SparseTensor.from_coo([[0, 1, 0], [2, 1, 1]], w, (2, 3))
    D, E = S.to_dense(), T.to_dense()
    x = torch.randn(4, dtype=torch.float64)
    pairs: list[tuple[Any, Tensor]] = [
        (S.cumsum(1), D.cumsum(1)),
        (torch.cumsum(S, 0), D.cumsum(0)),
        (torch.outer(S[1], T[0]).to_dense(), torch.outer(D[1], E[0])),
        (torch.outer(S[1], x).to_dense(), torch.outer(D[1], x)),
    ]
    for f in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss):
        for how in ("mean", "sum"):
            pairs += [
                (f(S, T, reduction=how), f(D, E, reduction=how)),
                (f(S, E, reduction=how), f(D, E, reduction=how)),
            ]
        pairs.append((f(S, T, reduction="none").to_dense(), f(D, E, reduction="none")))
    q = SparseTensor.from_coo(I, v.detach().abs(), (2, 3))
    pairs.append((F.kl_div(S, q, reduction="batchmean"), F.kl_div(D, q.to_dense(), reduction="batchmean")))
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs)
        weight = torch.rand_like(theirs)
        got = torch.autograd.grad((ours * weight).sum(), [v, w], retain_graph=True, allow_unused=True)
        want = torch.autograd.grad((theirs * weight).sum(), [v, w], retain_graph=True, allow_unused=True)
        for a, b in zip(got, want, strict=True):
            if b is not None:
                torch.testing.assert_close(a, b)
    with pytest.raises(SparseError, match="equal shapes"):
        F.mse_loss(S, T[:1])


@pytest.mark.parametrize("places", [[[0, 1, 1], [2, 0, 2]], [[1, 0, 1], [2, 2, 0]], [[0, 0, 1], [2, 2, 0]]])
@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_])
def test_torchs_own_clipping_takes_sparse_tensors(places: Any, clip: Any) -> None:
    """Sorted, unsorted and repeated places; a dense parameter goes along, and a gradient is clipped where it lies."""
    v, w = (torch.tensor([3.0, 4.0, 5.0], requires_grad=True) for _ in range(2))
    p, q = (nn.Parameter(torch.ones(2)) for _ in range(2))
    S = SparseTensor.from_coo(places, v, (2, 3))
    (S * S).sum().backward()
    w.grad, p.grad, q.grad = v.grad.clone(), torch.ones(2), torch.ones(2)
    told, expected = clip([S, p], 1.0), clip([w, q], 1.0)
    assert told is expected is None or torch.equal(told, expected)
    assert torch.equal(v.grad, w.grad) and torch.equal(p.grad, q.grad)
    assert torch.equal(nn.utils.get_total_norm([S.grad]), nn.utils.get_total_norm([w.grad]))
    told, expected = clip(S, 0.1), clip(w, 0.1)  # one alone, which is no list of its rows
    assert (told is expected is None or torch.equal(told, expected)) and torch.equal(v.grad, w.grad)
