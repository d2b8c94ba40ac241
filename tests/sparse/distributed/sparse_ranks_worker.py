"""What each rank runs, by torchrun: every check compares with one process that has all of it, and says what it found."""

from __future__ import annotations

import copy
import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from gradmend.sparse import Pattern, SparseError, SparseTensor
from gradmend.sparse.distributed import (
    ShardedEmbedding,
    ShardedSparseTensor,
    load_checkpoint,
    save_checkpoint,
    sparse_hook,
    traffic,
)
from gradmend.sparse.dynamic import RigL
from gradmend.sparse.nn import (
    GraphAttention,
    SparseConv2d,
    SparseEmbedding,
    SparseEmbeddingBag,
    SparseFeatureMap,
    SparseLinear,
    SubmanifoldConv2d,
    clip_grad_norm_,
    clip_grad_value_,
    get_total_norm,
)
from gradmend.sparse.optim import RowAdam, RowAdamW

FOLDER = Path(sys.argv[1])
CHECKS: dict[str, Callable[[], None]] = {}


def check(f: Callable[[], None]) -> Callable[[], None]:
    CHECKS[f.__name__] = f
    return f


def world() -> int:
    return dist.get_world_size()


def share(x: Tensor) -> Tensor:
    """This rank's part of a batch."""
    return x.chunk(world())[dist.get_rank()]


class Net(nn.Module):
    """All kinds of sparse parameters, some of which no rank uses."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SparseEmbedding(40, 12)
        self.bag = SparseEmbeddingBag(40, 12)
        self.linear = SparseLinear(12, 10, 0.3)
        self.conv = SparseConv2d(1, 2, 3, padding=1, density=0.5)
        self.unused = SparseLinear(4, 4, 0.5)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.table(ids[:, 0]) + self.bag(ids)
        h = self.linear(torch.tanh(h))
        return self.conv(h[:, None, :, None]).flatten(1)


def ids_of(step: int, bound: int = 40) -> Tensor:
    return torch.randint(0, bound, (16, 3), generator=torch.Generator().manual_seed(step))


def same(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def refused(words: str, f: Callable[[], Any]) -> None:
    said = ""
    try:
        f()
    except SparseError as error:
        said = str(error)
    assert words in said, said


@check
def ddp_trains_as_one_process() -> None:
    torch.manual_seed(0)
    net = Net()
    alone = copy.deepcopy(net)
    ddp = DDP(net, find_unused_parameters=True)
    ddp.register_comm_hook(None, sparse_hook)
    mine, theirs = RowAdam(ddp.parameters(), lr=0.01), RowAdam(alone.parameters(), lr=0.01)
    for step in range(10):
        mine.zero_grad()
        theirs.zero_grad()
        ddp(share(ids_of(step))).square().mean().backward()
        alone(ids_of(step)).square().mean().backward()
        same(clip_grad_norm_(ddp.parameters(), 0.1), clip_grad_norm_(alone.parameters(), 0.1))
        mine.step()
        theirs.step()
    for (name, a), (_, b) in zip(net.named_parameters(), alone.named_parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


class Dense(nn.Module):
    """Layers whose parameters are dense tensors: what FSDP can shard."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SparseLinear(12, 33, 0.3), SparseLinear(33, 5, 0.4)
        self.graph = GraphAttention(5, 4, heads=2)
        self.conv = SubmanifoldConv2d(8, 3)
        self.pattern = Pattern.random((16, 16), density=0.3, generator=torch.Generator().manual_seed(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.graph(self.pattern, self.second(torch.tanh(self.first(x))))
        points = torch.stack([torch.zeros(16).long(), torch.arange(16) // 4, torch.arange(16) % 4], 1)
        return self.conv(SparseFeatureMap.from_points(points, h, (4, 4), 1)).features


@check
def fsdp2_trains_as_one_process() -> None:
    torch.manual_seed(0)
    net = Dense()
    alone = copy.deepcopy(net)
    mesh = init_device_mesh("cpu", (world(),))
    for layer in (net.first, net.second):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    mine, theirs = (
        torch.optim.AdamW(net.parameters(), lr=0.01),
        torch.optim.AdamW(alone.parameters(), lr=0.01),
    )
    for step in range(10):
        x = torch.randn(
            16, 12, generator=torch.Generator().manual_seed(step)
        )  # all ranks the same: a graph is whole
        for model, optimizer in ((net, mine), (alone, theirs)):
            optimizer.zero_grad()
            model(x).square().mean().backward()
        same(clip_grad_norm_(net.parameters(), 0.05), clip_grad_norm_(alone.parameters(), 0.05))
        mine.step()
        theirs.step()
    whole = {k: p.full_tensor() for k, p in net.named_parameters()}
    torch.testing.assert_close(
        whole, {k: p.detach() for k, p in alone.named_parameters()}, rtol=1e-3, atol=1e-5
    )


@check
def rigl_grows_alike_on_all_ranks() -> None:
    torch.manual_seed(0)
    net = SparseLinear(12, 10, 0.3)
    alone = copy.deepcopy(net)
    ddp = DDP(net)
    mine, theirs = torch.optim.SGD(ddp.parameters(), lr=0.1), torch.optim.SGD(alone.parameters(), lr=0.1)
    ours, single = RigL(ddp, mine, every=2, fraction=0.3), RigL(alone, theirs, every=2, fraction=0.3)
    for step in range(6):
        x = torch.randn(16, 12, generator=torch.Generator().manual_seed(step))
        mine.zero_grad()
        theirs.zero_grad()
        ddp(share(x)).square().mean().backward()
        alone(x).square().mean().backward()
        mine.step()
        theirs.step()
        assert ours.step() == single.step()
    assert net.weight.pattern == alone.weight.pattern
    same(net.weight.values, alone.weight.values)


class Chosen(nn.Module):
    """Only some ranks use the second layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SparseLinear(12, 12, 0.3), SparseLinear(12, 12, 0.3)

    def forward(self, x: Tensor, both: bool) -> Tensor:
        h = self.first(x)
        return self.second(h) if both else h


@check
def rigl_grows_what_some_ranks_have_not_used() -> None:
    torch.manual_seed(0)
    net = Chosen()
    alone = copy.deepcopy(net)
    ddp, x = DDP(net, find_unused_parameters=True), torch.randn(16, 12)
    ours, single = RigL(ddp, None, every=1), RigL(alone, None, every=1)
    ddp(share(x), dist.get_rank() == 0).square().sum().backward()
    for i, part in enumerate(x.chunk(world())):
        alone(part, i == 0).square().sum().backward()
    assert ours.step() and single.step()
    assert net.first.weight.pattern == alone.first.weight.pattern
    assert net.second.weight.pattern == alone.second.weight.pattern
    refused("no gradient was seen", ours.step)


@check
def rows_are_sharded_and_halos_exchanged() -> None:
    g = torch.Generator().manual_seed(0)
    pattern = Pattern.random((37, 29), density=0.15, generator=g)
    values = torch.randn(pattern.nnz, generator=g).requires_grad_()
    X = torch.randn(29, 6, generator=g).requires_grad_()
    out = SparseTensor(pattern, values) @ X
    out.sin().sum().backward()

    S = ShardedSparseTensor.scatter(SparseTensor(pattern, values.detach()))
    w = S.values().clone().requires_grad_()
    x = S.cols.mine(X.detach()).clone().requires_grad_()
    traffic.take()
    mine = S.with_values(w) @ x
    sent = traffic.take()
    low, high = S.rows.bounds()
    same(mine, out[low:high])
    mine.sin().sum().backward()
    same(x.grad, S.cols.mine(X.grad))
    row = pattern.row
    same(w.grad, values.grad[(row >= low) & (row < high)])
    # Only rows that others have entries for were sent, each once.
    want = 0
    for other in range(world()):
        a, b = S.rows.bounds(other)
        cols = pattern.col[(row >= a) & (row < b)].unique()
        c, d = S.cols.bounds()
        want += 0 if other == dist.get_rank() else int(((cols >= c) & (cols < d)).sum())
    assert sent == want * 6 * 4, (sent, want)
    whole = (S @ S.cols.wrap(x)).full_tensor()
    same(whole, out.detach())
    refused("was given 99", lambda: S @ x[:1].expand(99, -1))


class Tower(nn.Module):
    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table, self.head = table, nn.Linear(6, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids).sum(1))


def towers(rows: int) -> tuple[Tower, Tower]:
    torch.manual_seed(0)
    alone = Tower(SparseEmbedding(rows, 6))
    mine = Tower(ShardedEmbedding(rows, 6, full=alone.table.weight.detach()))
    mine.head.load_state_dict(alone.head.state_dict())
    return mine, alone


def advance(mine: Tower, optimizer: Any, steps: range, rows: int) -> None:
    for step in steps:
        optimizer.zero_grad()
        mine(share(ids_of(step, rows))).square().mean().backward()
        for p in mine.head.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world()
        optimizer.step()


def advance_alone(alone: Tower, optimizer: Any, steps: range, rows: int) -> None:
    for step in steps:
        optimizer.zero_grad()
        alone(ids_of(step, rows)).square().mean().backward()
        optimizer.step()


@check
def sharded_tables_train_as_whole_ones() -> None:
    for rows in (50, 5):  # of 5 rows some ranks have none
        mine, alone = towers(rows)
        ours, theirs = RowAdamW(mine.parameters(), lr=0.05), RowAdamW(alone.parameters(), lr=0.05)
        advance(mine, ours, range(8), rows)
        advance_alone(alone, theirs, range(8), rows)
        same(mine.table.weight, mine.table.shards.mine(alone.table.weight.detach()))
        touched = ours.state_dict()["state"][0].get("rows", torch.empty(0))
        assert touched.numel() <= mine.table.shards.count
    refused("ids go from 7 to 7", lambda: mine.table(torch.tensor([7])))
    refused("ranks disagree", lambda: ShardedEmbedding(10 + dist.get_rank(), 4))


@check
def sharded_tables_are_clipped_by_the_norm_of_all_ranks() -> None:
    for rows, order in ((50, 2.0), (5, 2.0), (50, float("inf")), (5, -1.0)):  # of 5 rows some ranks have none
        mine, alone = towers(rows)
        mine.table.weight = nn.Parameter(mine.table.weight.detach().clone())  # as after load(assign=True)
        ids = ids_of(3, rows)
        mine(share(ids)).square().mean().backward()
        alone(ids).square().mean().backward()
        for p in mine.head.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world()
        same(*(get_total_norm([t.table.weight.grad], order) for t in (mine, alone)))
        same(*(clip_grad_norm_(t.parameters(), 0.01, order) for t in (mine, alone)))
        same(mine.head.weight.grad, alone.head.weight.grad)
        for clipped in (False, True):
            if clipped:
                for t in (mine, alone):
                    clip_grad_value_(t.parameters(), 1e-5)
            whole = alone.table.weight.grad.to_dense()
            same(mine.table.weight.grad.to_dense(), mine.table.shards.mine(whole))


@check
def sharded_matrices_are_clipped_by_the_norm_of_all_ranks() -> None:
    pattern = Pattern.random((9, 7), density=0.4, generator=torch.Generator().manual_seed(0))
    values, X = torch.linspace(-1, 1, pattern.nnz).requires_grad_(), torch.linspace(0, 3, 14).view(7, 2)
    X.requires_grad_()
    (SparseTensor(pattern, values) @ X).square().sum().backward()
    S = ShardedSparseTensor.scatter(SparseTensor(pattern, values.detach()))
    w, x = (t.detach().clone().requires_grad_() for t in (S.values(), S.cols.mine(X)))
    (S.with_values(w) @ x).square().sum().backward()
    same(clip_grad_norm_([w, x], 0.1), clip_grad_norm_([values, X], 0.1))
    same(x.grad, S.cols.mine(X.grad))


def penalty(loss: Tensor, x: Tensor) -> Tensor:
    """The gradient of a loss and of the squares of its gradient."""
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    first = first.to_dense() if first.is_sparse else first
    (second,) = torch.autograd.grad(loss + first.square().sum(), x)
    return second.to_dense() if second.is_sparse else second


@check
def second_derivatives_travel_too() -> None:
    for rows in (50, 5):
        mine, alone = towers(rows)
        full, ids = alone.table.weight, ids_of(3, rows)
        table = ShardedEmbedding(rows, 6, average=False, full=full.detach())
        ours = penalty(table(share(ids)).pow(3).sum(), table.weight)
        same(ours, table.shards.mine(penalty(full[ids].pow(3).sum(), full)))
        loss = mine.table(share(ids)).pow(3).sum()
        refused("average=False", lambda t=mine.table, y=loss: penalty(y, t.weight))
    pattern = Pattern.random((9, 7), density=0.4, generator=torch.Generator().manual_seed(0))
    whole = SparseTensor(pattern, torch.linspace(-1, 1, pattern.nnz))
    X = torch.linspace(0, 3, 14).view(7, 2).requires_grad_()
    S = ShardedSparseTensor.scatter(whole)
    x = S.cols.mine(X.detach()).clone().requires_grad_()
    ours = penalty((S @ x).pow(3).sum(), x)
    same(ours, S.cols.mine(penalty((whole.to_dense() @ X).pow(3).sum(), X)))


@check
def a_checkpoint_of_these_ranks_is_loaded() -> None:
    """Saved here; other numbers of ranks load it too."""
    rows = 50
    mine, _ = towers(rows)
    optimizer = RowAdamW(mine.parameters(), lr=0.05)
    advance(mine, optimizer, range(4), rows)
    place = FOLDER / f"by-{world()}"
    save_checkpoint(place, 4, mine, optimizer)
    resume(place)


def resume(place: Path) -> None:
    rows = 50
    mine, alone = towers(rows)
    with torch.no_grad():
        mine.table.weight.zero_()
        mine.head.weight.zero_()
    optimizer = RowAdamW(mine.parameters(), lr=0.9)
    assert load_checkpoint(place, mine, optimizer) == 4
    advance(mine, optimizer, range(4, 8), rows)
    theirs = RowAdamW(alone.parameters(), lr=0.05)
    advance_alone(alone, theirs, range(8), rows)
    same(mine.table.weight, mine.table.shards.mine(alone.table.weight.detach()))
    same(dict(mine.head.named_parameters()), dict(alone.head.named_parameters()))


@check
def sparse_patterns_are_in_the_checkpoint() -> None:
    torch.manual_seed(dist.get_rank() * 0 + 1)
    net = SparseLinear(8, 8, 0.4)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    place = FOLDER / f"pattern-{world()}"
    save_checkpoint(place, 1, net, optimizer)
    other = SparseLinear(8, 8, 0.2)
    load_checkpoint(place, other, torch.optim.Adam(other.parameters()))
    assert other.weight.pattern == net.weight.pattern
    same(other(torch.ones(2, 8)), net(torch.ones(2, 8)))
    refused("does not fit the model", lambda: load_checkpoint(place, SparseLinear(9, 8, 0.2)))
    refused("does not fit the model", lambda: load_checkpoint(place, nn.Linear(8, 8)))


@check
def ranks_take_one_pattern_and_notice_when_they_part() -> None:
    rank = dist.get_rank()
    torch.manual_seed(rank)
    m = DDP(SparseLinear(16, 16, 0.1 + 0.1 * rank))  # other places, and another number of them
    mine = m.module.weight.pattern.keys()
    first = mine.clone()
    dist.broadcast(first, 0)
    assert torch.equal(mine, first)  # before any forward
    told = "rank 0 has 'weight' of (16, 16) in float32 where rank 1 has 'weight' of (16, 17) in float32"
    refused(told, lambda: DDP(SparseLinear(16 + rank, 16, 0.1)))
    g = torch.Generator().manual_seed(5)
    X, Y = torch.randn(8, 16, generator=g), torch.randn(8, 16, generator=g)
    optimizer = torch.optim.SGD(m.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (m(share(X)) - share(Y)).square().mean().backward()
        optimizer.step()
    W = m.module.weight().to_dense().detach()
    all_of_them = [torch.zeros_like(W) for _ in range(world())]
    dist.all_gather(all_of_them, W)
    assert all(torch.equal(W, other) for other in all_of_them) and W.count_nonzero() > 0
    torch.manual_seed(7 + rank)
    m.module.load_state_dict(SparseLinear(16, 16, 0.1).state_dict())
    if rank == 0:  # the others are held against its pattern
        m(X)
    else:
        refused(f"weight on rank {rank} is no longer that of rank 0", lambda: m(X))


def die_while_saving() -> None:
    """Rank 1 ends while the second checkpoint is written: the first is still the one that is loaded."""
    rows = 50
    mine, _ = towers(rows)
    optimizer = RowAdamW(mine.parameters(), lr=0.05)
    advance(mine, optimizer, range(4), rows)
    place = FOLDER / "killed"
    save_checkpoint(place, 4, mine, optimizer)
    advance(mine, optimizer, range(4, 6), rows)
    if dist.get_rank() == 1:
        from gradmend.sparse.distributed import checkpoint

        real = checkpoint.dcp_save

        def half(*args: Any, **kwargs: Any) -> None:
            real(*args, **kwargs)
            os._exit(9)

        checkpoint.dcp_save = half
    save_checkpoint(place, 6, mine, optimizer)


def leave() -> None:
    """In order: no rank ends, or takes its sockets away, while another has something to say or to write."""
    gc.collect()  # what DDP and FSDP keep in cycles goes while its process group lives
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Tasks are "all", "load:FOLDER", and "die" as the last one, joined by commas."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    told: dict[str, str] = {}
    tasks: dict[str, Callable[[], None]] = {}
    for what in sys.argv[2].split(","):
        if what.startswith("load:"):
            tasks[what] = partial(resume, FOLDER / what.removeprefix("load:"))
        elif what == "all":
            tasks |= CHECKS
    for name, f in tasks.items():
        try:
            f()
            told[name] = "ok"
        except Exception:
            told[name] = traceback.format_exc()
        gc.collect()
        dist.barrier()
    (FOLDER / f"{sys.argv[3]}-{dist.get_rank()}.json").write_text(json.dumps(told))
    if sys.argv[2].endswith("die"):
        dist.barrier()  # all have written
        die_while_saving()
    leave()


if __name__ == "__main__":
    main()
