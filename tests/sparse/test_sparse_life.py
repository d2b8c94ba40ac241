"""A tensor's life: copied, pickled, shared with workers, trained for long."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, Dataset

from gradmend import sparse
from gradmend.sparse import Pattern, SparseError, SparseTensor, block_diag
from gradmend.sparse.nn import EdgeWeights, GraphConv, SparseLinear, SparseWeight

P = Pattern.random((6, 6), density=0.4, generator=torch.Generator().manual_seed(0))


def tensor() -> SparseTensor:
    return SparseTensor(P, torch.randn(P.nnz, requires_grad=True))


def test_deepcopy_pickle_and_torch_save() -> None:
    S = tensor()
    for again in (copy.deepcopy(S), pickle.loads(pickle.dumps(S)), copy.copy(S)):
        assert again.pattern == S.pattern and torch.equal(again.values(), S.values()) and again.requires_grad
    file = io.BytesIO()
    torch.save(S, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(again.to_dense(), S.to_dense())


class Graphs(Dataset[SparseTensor]):
    def __init__(self, shared: bool) -> None:
        self.shared = shared

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> SparseTensor:
        pattern = P if self.shared else Pattern.random((6, 6), nnz=3 + i)
        S = SparseTensor(pattern, torch.full((pattern.nnz,), float(i)))
        # Products run in the worker as well, where a parallel kernel would hang.
        assert (S @ torch.ones(6, 2)).shape == (6, 2)
        return S


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(workers: int) -> None:
    (torch.randn(400, 400) @ torch.randn(400, 400)).sum()  # threads exist before the fork
    _ = tensor() @ torch.ones(6, 2)
    batches = list(DataLoader(Graphs(True), batch_size=3, num_workers=workers))
    assert [b.shape for b in batches] == [(3, 6, 6)] * 2 and batches[0].batch_dims == 1
    assert batches[1].values()[2].unique().tolist() == [5]
    mixed = list(DataLoader(Graphs(False), batch_size=3, num_workers=workers))
    assert [b.shape for b in mixed] == [(3, 6, 6)] * 2 and mixed[0].nnz == 3 + 4 + 5
    ragged = list(DataLoader(Graphs(False), batch_size=3, num_workers=workers, collate_fn=block_diag))
    assert [b.shape for b in ragged] == [(18, 18)] * 2


def _double(S: SparseTensor) -> None:
    S.values().mul_(2)


def test_share_memory() -> None:
    S = SparseTensor(P, torch.ones(P.nnz)).share_memory_()
    assert S.values().is_shared() and S.pattern._indices.is_shared()
    worker = mp.get_context("fork").Process(target=_double, args=(S,))
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0 and S.values().unique().tolist() == [2]


def test_state_dict_carries_the_pattern() -> None:
    a, b = SparseLinear(9, 7, 0.3), SparseLinear(9, 7, 0.3)
    assert a.weight.pattern != b.weight.pattern
    file = io.BytesIO()
    torch.save(a.state_dict(), file)
    file.seek(0)
    b.load_state_dict(torch.load(file))
    x = torch.randn(4, 9)
    assert torch.equal(a(x), b(x)) and a.weight.pattern == b.weight.pattern
    c = SparseLinear(9, 7, 0.9)
    c.load_state_dict(a.state_dict())
    assert torch.equal(a(x), c(x)) and a.weight.pattern == c.weight.pattern


OPTIMIZERS = [
    *(torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad),
    *(torch.optim.Adadelta, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam, torch.optim.ASGD),
    *(torch.optim.Rprop, torch.optim.LBFGS),
]


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda k: k.__name__)
def test_every_optimizer_trains_values(kind: type[torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    layer = SparseLinear(8, 8, 0.4)
    x, y = torch.randn(32, 8), torch.randn(32, 8)
    decay = {} if kind in (torch.optim.Rprop, torch.optim.LBFGS) else {"weight_decay": 0.01}
    optimizer = kind(layer.parameters(), lr=0.05, **decay)
    before = nn.functional.mse_loss(layer(x), y).item()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(layer(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        return loss

    for _ in range(20):
        optimizer.step(closure)
    assert nn.functional.mse_loss(layer(x), y).item() < before
    # What isn't stored stays zero.
    dense = layer.weight().to_dense()
    assert dense.count_nonzero() <= layer.weight.pattern.nnz


def test_pruned_layer_computes_what_it_did() -> None:
    dense = nn.Linear(6, 5)
    mask = torch.rand(5, 6) < 0.5
    with torch.no_grad():
        dense.weight.mul_(mask)
    sparse = SparseLinear.from_dense(dense)
    x = torch.randn(3, 6)
    torch.testing.assert_close(sparse(x), dense(x))
    assert "places" in repr(sparse) and len(list(sparse.parameters())) == 2


def test_a_graph_learns_its_edges() -> None:
    torch.manual_seed(0)
    edges, conv = EdgeWeights(P, normalize=True), GraphConv(4, 3, reduce="mean")
    x, y = torch.randn(6, 4), torch.randn(6, 3)
    optimizer = torch.optim.Adam([*edges.parameters(), *conv.parameters()], lr=0.05)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = (conv(edges(), x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0] and edges.values.grad.count_nonzero() > 0


def test_grad_and_hooks_are_where_torch_has_them() -> None:
    S = tensor()
    S.sum(0).square().sum().backward()
    assert isinstance(S.grad, SparseTensor) and S.grad.pattern is S.pattern
    T = (S * 2).map(torch.sin)
    T.retain_grad()
    seen = []
    T.register_hook(lambda g: seen.append(g.shape))
    T.sum().backward()
    assert T.grad is not None and seen == [(P.nnz,)] and not T.is_leaf and T.detach().is_leaf


def test_what_is_made_in_inference_mode_trains_later() -> None:
    with torch.inference_mode():
        p = Pattern(P.indices().clone(), P.size)
        q = Pattern(P.indices(), P.size)
        SparseTensor(q, torch.ones(P.nnz)) @ torch.ones(6, 2)
        SparseTensor(q, torch.ones(P.nnz)).sum(0)
    for pattern in (p, q):
        v = torch.ones(P.nnz, requires_grad=True)
        S = SparseTensor(pattern, v)
        ((S.t() @ (S @ torch.ones(6, 2))).sum() + S.sum(0).square().sum()).backward()
        assert v.grad is not None


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _objects() -> int:
    gc.collect()
    return sum(isinstance(o, torch.Tensor | Pattern) for o in gc.get_objects())


@pytest.mark.parametrize(("steps", "wide"), [(3000, False), (300, True)], ids=["one op", "many ops"])
def test_long_training_keeps_flat_memory(steps: int, wide: bool) -> None:
    torch.manual_seed(0)
    layer, x = SparseWeight(P), torch.randn(6, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        W = layer()
        loss = (W @ x).square().sum()
        if wide:
            fresh = SparseTensor.from_coo(P.indices().flip(1), layer.values, P.size)
            loss = loss + (W @ fresh).sum(0).sum() + W.softmax(1).amax(0).sum() + W.t()[1:].norm()
        loss.backward()
        optimizer.step()

    for _ in range(steps // 10):
        step()
    before, size = _objects(), _resident()
    for _ in range(steps - steps // 10):
        step()
    assert _objects() <= before + 2
    assert _resident() - size < 32 << 20


def test_a_sparse_tensor_is_not_written_to() -> None:
    S = tensor()
    with pytest.raises(SparseError, match="its pattern is fixed"):
        S[0] = 1.0
    with pytest.raises(SparseError, match=r"use S\.any\(\) or S\.all\(\)"):
        bool(S)
    T = S
    T += S  # makes a new tensor
    assert T is not S and torch.equal(T.to_dense(), 2 * S.to_dense())


@pytest.mark.parametrize("name", [n for n in sparse.__all__ if inspect.isroutine(getattr(sparse, n))])
def test_functions_go_to_other_processes(name: str) -> None:
    """A collate function is pickled where workers are spawned: the default of macOS, of Windows, and of Python 3.14."""
    function = getattr(sparse, name)
    assert pickle.loads(pickle.dumps(function)) is function
