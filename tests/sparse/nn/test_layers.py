"""Each layer against its dense twin: outputs, gradients, and a training run of a hundred steps, to rounding."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradmend.sparse import Pattern, PatternError, SparseError, SparseTensor, band
from gradmend.sparse.errors import ArgumentError
from gradmend.sparse.nn import (
    GraphAttention,
    GraphConv,
    SparseAttention,
    SparseConv2d,
    SparseEmbedding,
    SparseEmbeddingBag,
    SparseLinear,
    patterns,
)
from gradmend.sparse.optim import RowSGD


class Masked(nn.Module):
    """A dense layer that computes with a masked weight: what the sparse layer must be."""

    def __init__(self, layer: nn.Module, mask: Tensor) -> None:
        super().__init__()
        self.layer, self.mask = layer, mask

    def forward(self, x: Tensor) -> Tensor:
        weight = self.layer.weight * self.mask
        if isinstance(self.layer, nn.Linear):
            return F.linear(x, weight, self.layer.bias)
        one = self.layer
        return F.conv2d(x, weight, one.bias, one.stride, one.padding, one.dilation, one.groups)


def train(model: nn.Module, inputs: Callable[[int], Tensor], steps: int = 100) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for i in range(steps):
        optimizer.zero_grad()
        loss = model(inputs(i)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def drawn(*shape: int) -> Callable[[int], Tensor]:
    return lambda i: torch.randn(shape, generator=torch.Generator().manual_seed(i), dtype=torch.float64)


LINEAR: dict[str, dict[str, Any]] = {
    "density": {"density": 0.2},
    "blocks": {"density": 0.5, "block": (2, 4)},
    "2 of 4": {"n_of_m": (2, 4)},
}


@pytest.mark.parametrize("how", LINEAR)
def test_linear(how: str) -> None:
    torch.manual_seed(0)
    dense = nn.Linear(24, 10, dtype=torch.float64)
    ours = SparseLinear.from_dense(dense, **LINEAR[how])
    mask = ours.weight().to_dense() != 0
    if how == "density":
        kept, lost = dense.weight[mask].abs().min(), dense.weight[~mask].abs().max()
        assert kept >= lost and int(mask.sum()) == 48
    if how == "2 of 4":
        assert (mask.unflatten(1, (-1, 4)).sum(2) == 2).all()
    if how == "blocks":
        assert mask.unflatten(1, (-1, 4)).unflatten(0, (-1, 2)).sum((1, 3)).unique().tolist() == [0, 8]
    twin = Masked(dense, mask)
    x = torch.randn(3, 5, 24, dtype=torch.float64, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    ours(x).sin().sum().backward()
    twin(y).sin().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(ours.weight.values.grad, dense.weight.grad[mask])
    torch.testing.assert_close(train(ours, drawn(7, 24)), train(twin, drawn(7, 24)))
    torch.testing.assert_close(ours.weight().to_dense(), dense.weight.detach() * mask)


@pytest.mark.parametrize("groups", [1, 2])
def test_conv(groups: int) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": groups}
    dense = nn.Conv2d(4, 6, 3, dtype=torch.float64, **options)
    ours = SparseConv2d.from_dense(dense, density=0.3)
    mask = ours.weight().to_dense().view(dense.weight.shape) != 0
    twin = Masked(dense, mask)
    x = torch.randn(2, 4, 9, 8, dtype=torch.float64, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    torch.testing.assert_close(ours(x), twin(y))
    torch.testing.assert_close(ours(x[0]), twin(y[:1])[0])
    ours(x).sin().sum().backward()
    twin(y).sin().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(ours.weight.values.grad, dense.weight.grad[mask])
    torch.testing.assert_close(train(ours, drawn(2, 4, 6, 6)), train(twin, drawn(2, 4, 6, 6)))


@pytest.mark.parametrize("kernel", [1, 2, 3, (4, 5)])
@pytest.mark.parametrize("padding", ["same", "valid", (1, 2)])
@pytest.mark.parametrize("dilation", [1, 3])
def test_conv_padding(kernel: Any, padding: Any, dilation: int) -> None:
    layer = nn.Conv2d(3, 4, kernel, padding=padding, dilation=dilation, dtype=torch.float64)
    x = torch.randn(2, 3, 14, 17, dtype=torch.float64)
    torch.testing.assert_close(SparseConv2d.from_dense(layer)(x), layer(x))
    made = SparseConv2d(3, 4, kernel, padding=padding, dilation=dilation, dtype=torch.float64)
    assert made(x[:0]).shape == layer(x[:0]).shape  # a batch without images


def test_conv_padding_that_torch_refuses() -> None:
    for options in ({"padding": "full"}, {"padding": "same", "stride": 2}):
        with pytest.raises(ValueError, match="padding"):
            nn.Conv2d(3, 4, 3, **options)
        with pytest.raises(ArgumentError, match="padding"):
            SparseConv2d(3, 4, 3, **options)


def test_conv_takes_whole_numbers() -> None:
    for wrong in (1.5, "a", None, (3,), (3, 3, 3), (3, 2.5)):
        with pytest.raises(ArgumentError, match="kernel_size is a whole number or a pair of them, not"):
            SparseConv2d(3, 4, wrong)
    for name, value in (("kernel_size", 0), ("stride", 0), ("dilation", 0), ("padding", -1)):
        with pytest.raises(ArgumentError, match=f"{name} is at least"):
            SparseConv2d(3, 4, **{"kernel_size": 3, name: value})


def test_a_state_is_taken_whole_or_refused() -> None:
    layer = SparseLinear(8, 8, 0.3)

    def told(change: Callable[[dict[str, Any]], Any]) -> str:
        state = copy.deepcopy(layer.state_dict())
        change(state)
        before = layer.weight().to_dense()
        with pytest.raises(PatternError) as error:
            layer.load_state_dict(state)
        assert torch.equal(layer.weight().to_dense(), before)
        return str(error.value)

    def mixed(state: dict[str, Any]) -> None:
        order = torch.arange(layer.weight.pattern.nnz).flip(0)
        places = state["weight._extra_state"]
        places["indices"], state["weight.values"] = places["indices"][:, order], state["weight.values"][order]

    assert "its places are not in order" in told(mixed)
    assert "it has no size" in told(lambda s: s["weight._extra_state"].update(size=None))
    assert "are a str, no tensor" in told(lambda s: s.update({"weight.values": "0.5"}))


@pytest.mark.parametrize("features", [(0, 3), (3, 0), (0, 0), (2, 3)])
@pytest.mark.parametrize("lead", [(), (0,), (2,), (2, 0), (2, 3)])
def test_linear_without_inputs(features: tuple[int, int], lead: tuple[int, ...]) -> None:
    x = torch.ones(*lead, features[0], requires_grad=True)
    ours, twin = SparseLinear(*features, density=1.0), nn.Linear(*features)
    with torch.no_grad():
        twin.weight.copy_(ours.weight().to_dense())
        twin.bias.copy_(ours.bias)
    torch.testing.assert_close(ours(x), twin(x))
    ours(x).sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape


def test_rows_start_within_their_own_bound() -> None:
    pattern = Pattern(
        torch.cat([torch.stack([torch.zeros(400).long(), torch.arange(400)]), torch.tensor([[1], [3]])], 1),
        (2, 400),
    )
    values = SparseLinear(400, 2, pattern=pattern).weight.values
    assert 0.04 < values[:400].abs().max() <= 0.05 and values[400].abs() <= 1


def test_what_torch_has_pruned_is_read() -> None:
    import torch.nn.utils.prune as prune
    from torch.nn.utils import parametrize

    layer = nn.Linear(8, 8)
    prune.l1_unstructured(layer, "weight", 0.75)
    with torch.no_grad():
        layer.weight_orig[layer.weight_mask.bool()] *= 0  # kept, and zero: only the mask knows
    ours = SparseLinear.from_dense(layer)
    assert ours.weight.pattern.nnz == 16

    class Mask(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.eye(8))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.mask

    layer = nn.Linear(8, 8)
    parametrize.register_parametrization(layer, "weight", Mask())
    assert SparseLinear.from_dense(layer).weight.pattern.nnz == 8


def test_values_are_pruned_and_parametrized_by_torch() -> None:
    import torch.nn.utils.prune as prune
    from torch.nn.utils import parametrize

    ours = SparseLinear(20, 10, 0.5)
    prune.l1_unstructured(ours.weight, "values", 0.5)
    x = torch.randn(3, 20)
    ours(x).sum().backward()
    assert int((ours.weight.values_orig.grad != 0).sum()) == 50
    state = copy.deepcopy(ours.state_dict())
    ours.load_state_dict(state)
    prune.remove(ours.weight, "values")
    assert int((ours.weight.values != 0).sum()) == 50

    class Twice(nn.Module):
        def forward(self, v: Tensor) -> Tensor:
            return v * 2

    before = ours(x) - ours.bias
    parametrize.register_parametrization(ours.weight, "values", Twice())
    torch.testing.assert_close(ours(x) - ours.bias, 2 * before)
    ours.load_state_dict(copy.deepcopy(ours.state_dict()))


def test_ao_pruning_makes_layers_that_become_sparse() -> None:
    pruning = pytest.importorskip("torch.ao.pruning")
    model = nn.Sequential(nn.Linear(8, 8))
    sparsifier = pruning.WeightNormSparsifier(
        sparsity_level=0.5, sparse_block_shape=(1, 4), zeros_per_block=4
    )
    sparsifier.prepare(model, [{"tensor_fqn": "0.weight"}])
    sparsifier.step()
    ours = SparseLinear.from_dense(model[0])
    assert ours.weight.pattern.nnz == 32
    x = torch.randn(3, 8)
    torch.testing.assert_close(ours(x), model(x))


@pytest.mark.parametrize("kind", ["ids", "padding"])
def test_embedding(kind: str) -> None:
    torch.manual_seed(0)
    padding = 3 if kind == "padding" else None
    ours = SparseEmbedding(20, 6, padding_idx=padding)
    twin = nn.Embedding(20, 6, padding_idx=padding)
    twin.load_state_dict(ours.state_dict())
    a, b = RowSGD(ours.parameters(), lr=0.1), torch.optim.SGD(twin.parameters(), lr=0.1)
    for i in range(100):
        ids = torch.randint(0, 20, (4, 3), generator=torch.Generator().manual_seed(i))
        for model, optimizer in ((ours, a), (twin, b)):
            optimizer.zero_grad()
            (model(ids).sum(1) - 1).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(ours.weight, twin.weight)
    with pytest.raises(SparseError, match="ids go from 5 to 20, and the table has the rows 0 to 19"):
        ours(torch.tensor([5, 20]))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("padding", [None, 2])
def test_embedding_bag(mode: str, weighted: bool, padding: int | None) -> None:
    if weighted and mode != "sum":
        pytest.skip("torch's own has weights with sum only")
    torch.manual_seed(0)
    ours = SparseEmbeddingBag(20, 6, mode=mode, padding_idx=padding, dtype=torch.float64)
    twin = nn.EmbeddingBag(20, 6, mode=mode, padding_idx=padding, dtype=torch.float64)
    twin.load_state_dict(ours.state_dict())
    a, b = RowSGD(ours.parameters(), lr=0.1), torch.optim.SGD(twin.parameters(), lr=0.1)
    for i in range(100):
        g = torch.Generator().manual_seed(i)
        ids = torch.randint(0, 20, (12,), generator=g)
        offsets = torch.tensor([0, 4, 4, 9])
        weights = torch.randn(12, generator=g, dtype=torch.float64)
        grads = []
        for model, optimizer in ((ours, a), (twin, b)):
            w = weights.clone().requires_grad_() if weighted else None
            optimizer.zero_grad()
            (model(ids, offsets, w) - 1).square().mean().backward()
            optimizer.step()
            grads.append(None if w is None else w.grad)
        if weighted and padding is None:
            torch.testing.assert_close(*grads)
    torch.testing.assert_close(ours.weight, twin.weight)
    torch.testing.assert_close(ours(ids.view(3, 4)), twin(ids.view(3, 4)))
    assert ours.weight.grad.is_sparse and ours.weight.grad._indices().unique().shape[0] <= 12
    assert SparseEmbeddingBag(20, 6).mode == nn.EmbeddingBag(20, 6).mode
    if mode == "max":
        with pytest.raises(SparseError, match='not for "max"'):
            ours(ids, offsets, weights)


def test_a_bag_of_words_is_a_sparse_tensor() -> None:
    bag = SparseEmbeddingBag(50, 4, mode="sum", dtype=torch.float64)
    S = SparseTensor.from_dense((torch.rand(6, 50, dtype=torch.float64) - 0.8).clamp(min=0)).requires_grad_()
    W = bag.weight.detach().clone().requires_grad_()
    D = S.to_dense().detach().requires_grad_()
    torch.testing.assert_close(bag(S), D @ W)
    bag(S).sin().sum().backward()
    (D @ W).sin().sum().backward()
    torch.testing.assert_close(bag.weight.grad.to_dense(), W.grad)
    torch.testing.assert_close(S.grad.to_dense(), D.grad * (D != 0))
    assert torch.equal(bag.weight.grad._indices()[0], (D != 0).any(0).nonzero().squeeze(1))  # each row once


def derivatives(y: Tensor, *inputs: Tensor) -> list[Tensor]:
    """Gradients of |y|^4, of that and its gradient's squares, and so on: three orders."""
    found: list[Tensor] = []
    value = (y * y.conj()).real.pow(2).sum()
    for _ in range(3):
        grads = torch.autograd.grad(value, inputs, create_graph=True)
        dense = [g.to_dense() if g.is_sparse else g for g in grads]
        found += dense
        value = sum(((g * g.conj()).real.sum() for g in dense), value)
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_has_derivatives_of_any_order(mode: str, dtype: torch.dtype) -> None:
    if mode == "max" and dtype.is_complex:
        pytest.skip("complex numbers have no largest")
    torch.manual_seed(0)
    bag = SparseEmbeddingBag(10, 4, mode=mode, padding_idx=5, dtype=dtype)
    W = bag.weight.detach().clone().requires_grad_()
    ids = torch.tensor([1, 2, 2, 3, 1, 0])
    rows = W[ids]
    cut = [rows[:3], rows[3:]]
    want = torch.stack([getattr(r, "amax" if mode == "max" else mode)(0) for r in cut])
    padded, offsets = torch.tensor([1, 2, 5, 2, 3, 1, 0]), torch.tensor([0, 4])
    torch.testing.assert_close(derivatives(bag(padded, offsets), bag.weight), derivatives(want, W))
    if mode != "sum":
        return
    weights = torch.randn(6, dtype=dtype, requires_grad=True)
    want = torch.stack([(weights[:3, None] * rows[:3]).sum(0), (weights[3:, None] * rows[3:]).sum(0)])
    torch.testing.assert_close(
        derivatives(bag(ids, torch.tensor([0, 3]), weights), bag.weight, weights),
        derivatives(want, W, weights),
    )
    S = SparseTensor.from_coo(torch.tensor([[0, 0, 2], [3, 1, 3]]), weights[:3], (3, 10))
    torch.testing.assert_close(
        derivatives(bag(S), bag.weight, weights), derivatives(S.to_dense() @ W, W, weights)
    )


@pytest.mark.parametrize("padding", [None, 2])
def test_a_table_has_derivatives_of_any_order(padding: int | None) -> None:
    torch.manual_seed(0)
    table = SparseEmbedding(10, 4, padding_idx=padding, dtype=torch.float64)
    W = table.weight.detach().clone().requires_grad_()
    ids = torch.tensor([[1, 2, 2], [3, 1, 0]], dtype=torch.int32)
    want = W[ids] if padding is None else torch.where((ids == padding)[..., None], W[ids].detach(), W[ids])
    torch.testing.assert_close(derivatives(table(ids), table.weight), derivatives(want, W))
    assert table(ids[:0]).shape == (0, 3, 4)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("padding", [None, 1])
def test_ids_may_be_vmapped(padding: int | None) -> None:
    ids = torch.tensor([[[1, 2], [3, 0]], [[0, 1], [1, 2]]])
    table = SparseEmbedding(10, 4, padding_idx=padding)
    torch.testing.assert_close(torch.func.vmap(table)(ids), table(ids))
    with pytest.raises(SparseError, match="ids go from 0 to 10"):
        torch.func.vmap(table)(torch.tensor([[0], [10]]))
    for mode in ("sum", "mean", "max"):
        bag = SparseEmbeddingBag(10, 4, mode=mode, padding_idx=padding)
        torch.testing.assert_close(torch.func.vmap(bag)(ids), torch.stack([bag(one) for one in ids]))
    weights = torch.rand(2, 2, 2)
    bag = SparseEmbeddingBag(10, 4, mode="sum", padding_idx=padding)
    over = torch.func.vmap(lambda i, w: bag(i, None, w))(ids, weights)
    torch.testing.assert_close(
        over, torch.stack([bag(i, None, w) for i, w in zip(ids, weights, strict=True)])
    )


def test_attention_is_multihead_attention_with_a_mask() -> None:
    torch.manual_seed(0)
    twin = nn.MultiheadAttention(16, 4, batch_first=True, dtype=torch.float64)
    ours = SparseAttention(16, 4, dtype=torch.float64)
    ours.load_state_dict(twin.state_dict())
    pattern = band(9, 2, 1)
    mask = torch.ones(9, 9, dtype=torch.bool)
    mask[pattern.row, pattern.col] = False

    def theirs(x: Tensor) -> Tensor:
        return twin(x, x, x, attn_mask=mask, need_weights=False)[0]

    x = torch.randn(3, 9, 16, dtype=torch.float64)
    torch.testing.assert_close(ours(x, pattern=pattern), theirs(x))

    class Both(nn.Module):
        def __init__(self, inner: nn.Module, f: Any) -> None:
            super().__init__()
            self.inner, self.f = inner, f

        def forward(self, x: Tensor) -> Tensor:
            return self.f(x)

    a = train(Both(ours, lambda x: ours(x, pattern=pattern) - x), drawn(2, 9, 16))
    b = train(Both(twin, lambda x: theirs(x) - x), drawn(2, 9, 16))
    torch.testing.assert_close(a, b)
    with pytest.raises(PatternError, match="9 queries meet 9 keys"):
        ours(x, pattern=band(8))


def dense_gat(layer: GraphAttention, mask: Tensor, x: Tensor, extra: Tensor | None = None) -> Tensor:
    h = layer.lin(x).view(-1, layer.heads, layer.out_features).transpose(0, 1)
    e = (h * layer.target[:, None]).sum(2)[:, :, None] + (h * layer.source[:, None]).sum(2)[:, None, :]
    e = F.leaky_relu(e, layer.negative_slope)
    if extra is not None:
        e = e + extra
    a = e.masked_fill(~mask, -torch.inf).softmax(2).nan_to_num()
    out = a @ h
    out = out.transpose(0, 1).flatten(1) if layer.concat else out.mean(0)
    return out if layer.bias is None else out + layer.bias


@pytest.mark.parametrize("concat", [True, False])
def test_graph_attention(concat: bool) -> None:
    torch.manual_seed(0)
    ours = GraphAttention(5, 4, heads=3, concat=concat).double()
    twin = copy.deepcopy(ours)
    mask = torch.rand(11, 11) < 0.3
    mask[4] = False  # a node that looks at nobody
    pattern = Pattern(mask.nonzero().t(), (11, 11))
    twin.forward = lambda x: dense_gat(twin, mask, x)  # type: ignore[method-assign]
    step = copy.deepcopy(ours)
    step.forward = lambda x: GraphAttention.forward(step, pattern, x)  # type: ignore[method-assign]
    torch.testing.assert_close(train(step, drawn(11, 5)), train(twin, drawn(11, 5)))
    extra = torch.randn(pattern.nnz, dtype=torch.float64)
    S = SparseTensor(pattern, extra)
    x = torch.randn(11, 5, dtype=torch.float64)
    torch.testing.assert_close(ours(S, x), dense_gat(ours, mask, x, S.to_dense()))


def test_wrong_shapes_are_told() -> None:
    with pytest.raises(PatternError, match="blocks of \\(3, 2\\) don't tile"):
        SparseLinear(8, 8, block=(3, 2))
    with pytest.raises(PatternError, match="2 of every 3 does not fit rows of 8"):
        SparseLinear(8, 8, n_of_m=(2, 3))
    with pytest.raises(PatternError, match="a density is from 0 to 1, not 2"):
        SparseLinear(8, 8, 2)
    with pytest.raises(PatternError, match="mask is"):
        SparseLinear.from_dense(nn.Linear(8, 4), torch.ones(4, 4, dtype=torch.bool))
    with pytest.raises(SparseError, match="images are"):
        SparseConv2d(3, 4, 3)(torch.ones(2, 5, 8, 8))
    with pytest.raises(SparseError, match="3 groups"):
        SparseConv2d(4, 4, 3, groups=3)
    with pytest.raises(SparseError, match="offsets"):
        SparseEmbeddingBag(4, 4)(torch.tensor([1, 2]))
    with pytest.raises(SparseError, match="never fall"):
        SparseEmbeddingBag(4, 4)(torch.tensor([1, 2]), torch.tensor([0, 5]))
    with pytest.raises(SparseError, match="no max_norm"):
        SparseEmbedding(4, 4, max_norm=1.0)
    with pytest.raises(SparseError, match="heads"):
        SparseAttention(10, 4)
    assert patterns.random((8, 8), 0.5, (2, 2)).nnz == 32


@pytest.mark.parametrize("bias", [True, False])
def test_linear_takes_a_sparse_batch_as_nn_linear_does(bias: bool) -> None:
    layer = SparseLinear(30, 4, density=0.5, bias=bias).double()
    X = torch.randn(8, 30, dtype=torch.float64).relu().requires_grad_()
    S = SparseTensor.from_dense(X)
    got = layer(S)
    weight = layer.weight().to_dense().detach().requires_grad_()
    want = F.linear(X, weight, layer.bias)
    torch.testing.assert_close(got, want)
    ours = torch.autograd.grad(got.square().sum(), layer.weight.values)
    theirs = torch.autograd.grad(want.square().sum(), weight)
    torch.testing.assert_close(ours[0], theirs[0][tuple(layer.weight.pattern.indices())])


@pytest.mark.parametrize("layer", [GraphConv(5, 4), GraphAttention(5, 4, 2)], ids=["conv", "attention"])
def test_graph_layers_take_torchs_sparse_tensors_and_name_their_arguments(layer: nn.Module) -> None:
    A = (torch.rand(6, 6, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    x = torch.randn(6, 5)
    want = layer(SparseTensor.from_dense(A), x)
    for other in (A.to_sparse_coo(), A.to_sparse_csr()):
        torch.testing.assert_close(layer(other, x), want)
    for wrong in (A, "A", None):
        with pytest.raises(SparseError, match="takes the adjacency first"):
            layer(wrong, x)
    with pytest.raises(SparseError, match=r"a dense tensor of \(6, 5\)"):
        layer(x, SparseTensor.from_dense(A))
