"""What each rank runs, by torchrun: sharded tables on gloo, or (`walled`) on a device whose group sends nothing else.

torchrun --nproc-per-node=2 tables_worker.py FOLDER cpu|walled
"""

from __future__ import annotations

import gc
import json
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

from gradmend.sparse import Pattern, SparseError, SparseTensor
from gradmend.sparse.distributed import (
    ShardedEmbedding,
    ShardedEmbeddingBag,
    ShardedEmbeddingBagCollection,
    ShardedSparseTensor,
    load_checkpoint,
    save_checkpoint,
)
from gradmend.sparse.nn import SparseLinear, clip_grad_norm_
from gradmend.sparse.optim import RowAdamW

FOLDER, KIND = Path(sys.argv[1]), sys.argv[2]
CHECKS: dict[str, Callable[[], None]] = {}
TABLES = {"user": (20, 4), "shop": (7, 6), "item": (33, 4), "tag": (5, 4)}


def check(f: Callable[[], None]) -> Callable[[], None]:
    CHECKS[f.__name__] = f
    return f


def there(x: Tensor) -> Tensor:
    return x.to(KIND)


def all_ranks() -> DeviceMesh:
    return init_device_mesh(KIND, (dist.get_world_size(),))


def two_dimensions() -> DeviceMesh:
    return init_device_mesh(KIND, (2, dist.get_world_size() // 2), mesh_dim_names=("data", "shard"))


def share(x: Tensor) -> Tensor:
    return x.chunk(dist.get_world_size())[dist.get_rank()]


def same(got: Any, want: Any) -> None:
    torch.testing.assert_close(got.detach().cpu(), want.detach().cpu(), rtol=1e-4, atol=1e-5)


def refused(words: str, f: Callable[[], Any]) -> None:
    try:
        f()
    except (SparseError, RuntimeError) as error:  # a device has an error of its own
        if words not in str(error):
            raise AssertionError(f"another sentence: {error}") from error
        return
    raise AssertionError("nothing was raised")


def drawn(rows: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(rows, shape, generator=torch.Generator().manual_seed(seed))


def whole_tables() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(1)
    return {name: torch.randn(n, d, generator=g) for name, (n, d) in TABLES.items()}


@contextmanager
def exchanges() -> Iterator[list[int]]:
    """Counts all-to-alls."""
    real, count = dist.all_to_all_single, [0]

    def counted(*args: Any, **options: Any) -> Any:
        count[0] += 1
        return real(*args, **options)

    dist.all_to_all_single = counted
    try:
        yield count
    finally:
        dist.all_to_all_single = real


def bags(step: int) -> dict[str, Tensor]:
    return {name: drawn(n, 8, 3, seed=step * 10 + i) for i, (name, (n, _)) in enumerate(TABLES.items())}


@check
def a_table_is_made_on_the_device_of_its_mesh() -> None:
    for table in (
        ShardedEmbedding(10, 4, all_ranks()),
        ShardedEmbedding(10, 4, all_ranks(), full=torch.ones(10, 4)),
    ):
        assert table.weight.device.type == KIND
        table(there(torch.tensor([1, 7]))).sum().backward()
        assert table.weight.grad is not None and table.weight.grad.device.type == KIND
    if KIND != "cpu":
        mesh = all_ranks()
        refused("sends tensors on walled", lambda: ShardedEmbedding(10, 4, mesh, device="cpu"))
        S = SparseTensor.from_dense(torch.eye(4))
        refused("sends tensors on walled", lambda: ShardedSparseTensor.scatter(S, mesh))


@check
def a_collection_trains_as_whole_tables_with_one_exchange_for_each_width() -> None:
    full = whole_tables()
    ours = ShardedEmbeddingBagCollection(TABLES, all_ranks(), full=full)
    alone = nn.ModuleDict(
        {
            k: nn.EmbeddingBag.from_pretrained(x.clone(), False, mode="sum", sparse=True)
            for k, x in full.items()
        }
    )
    mine, theirs = RowAdamW(ours.parameters(), lr=0.05), RowAdamW(alone.parameters(), lr=0.05)
    for step in range(4):
        mine.zero_grad()
        theirs.zero_grad()
        with exchanges() as count:
            found = ours({name: there(share(ids)) for name, ids in bags(step).items()})
            assert list(found) == list(TABLES)
            sum(x.square().mean() for x in found.values()).backward()
        assert count[0] == 4 * 2, f"{count[0]} all-to-alls for tables of two widths"
        whole = {name: alone[name](ids) for name, ids in bags(step).items()}
        sum(x.square().mean() for x in whole.values()).backward()
        for name, x in found.items():
            same(x, share(whole[name]))
        mine.step()
        theirs.step()
    for name in TABLES:
        table, rows = ours.rows(name)
        low, high = table.shards.bounds()
        held = [r for r in rows if low <= r < high]
        same(table.weight[[r - low for r in held]], alone[name].weight[[r - rows.start for r in held]])


@check
def a_collection_takes_offsets_some_of_its_tables_and_no_strange_ones() -> None:
    full, mesh = whole_tables(), all_ranks()
    ours = ShardedEmbeddingBagCollection(TABLES, mesh, mode="mean", full=full)
    flat, offsets = torch.tensor([1, 2, 2, 19]), torch.tensor([0, 0, 3])
    found = ours({"tag": there(torch.tensor([[1], [4], [2]])), "user": (there(flat), there(offsets))})
    same(found["user"], nn.functional.embedding_bag(flat, full["user"], offsets, mode="mean"))
    same(found["tag"], full["tag"][[1, 4, 2]])
    bag = ShardedEmbeddingBag(20, 4, mesh, full=full["user"])
    same(bag(there(flat), there(offsets)), found["user"])
    same(bag(there(flat.view(2, 2))), full["user"][flat.view(2, 2)].mean(1))
    refused("no table 'other'", lambda: ours({"other": there(flat)}))
    outside = "ids go from 1 to 19" if KIND == "cpu" else "ids are outside the 5 rows of the table 'tag'"
    refused(outside, lambda: ours({"tag": there(flat[:, None])}))
    refused("ids go from 1 to 20", lambda: bag(there(flat[:, None] + (flat[:, None] == 19))))
    refused("offsets begin with 0", lambda: bag(there(flat), there(offsets + 1)))


@check
def rows_are_replicated_over_the_other_dimension_of_a_mesh() -> None:
    mesh, full = two_dimensions(), whole_tables()["item"]
    torch.manual_seed(dist.get_rank())  # replicas take the first one's rows
    drew = ShardedEmbedding(33, 4, mesh["shard"], replicate=mesh["data"])
    first = drew.weight.detach().clone()
    dist.broadcast(first, dist.get_global_rank(mesh["data"].get_group(), 0), group=mesh["data"].get_group())
    assert torch.equal(first.cpu(), drew.weight.detach().cpu())
    ours = ShardedEmbedding(33, 4, mesh["shard"], replicate=mesh["data"], full=full)
    alone = nn.Embedding.from_pretrained(full.clone(), False, sparse=True)
    mine, theirs = RowAdamW(ours.parameters(), lr=0.05), RowAdamW(alone.parameters(), lr=0.05)
    for step in range(4):
        mine.zero_grad()
        theirs.zero_grad()
        ids = drawn(33, 8, seed=step)
        (ours(there(share(ids))).square().mean() + ours(there(share(ids))).mean()).backward()
        (alone(ids).square().mean() + alone(ids).mean()).backward()
        mine.step()
        theirs.step()
    same(ours.weight, ours.shards.mine(alone.weight.detach()))
    refused(
        "pass it as replicate=",
        lambda: ShardedEmbedding(33, 4, mesh["shard"]) if mesh["shard"].size() < mesh.size() else None,
    )
    refused("one dimension of a mesh, not 2", lambda: ShardedEmbedding(33, 4, mesh))
    S = SparseTensor.from_dense(there(torch.eye(4)))
    refused("pass it as replicate=", lambda: ShardedSparseTensor.scatter(S, mesh["shard"]))
    assert ShardedEmbedding(33, 4, mesh["shard"], replicate=False).shards.replicas is None


@check
def a_matrix_is_sharded() -> None:
    pattern = Pattern.random((9, 7), density=0.4, generator=torch.Generator().manual_seed(0))
    whole = SparseTensor(pattern, torch.linspace(-1, 1, pattern.nnz))
    X = torch.linspace(0, 3, 14).view(7, 2).requires_grad_()
    S = ShardedSparseTensor.scatter(whole.to(KIND), all_ranks())
    x = there(S.cols.mine(X.detach()).clone()).requires_grad_()
    (S @ x).square().sum().backward()
    (whole @ X).square().sum().backward()
    same(x.grad, S.cols.mine(X.grad))


class Tower(nn.Module):
    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = table, nn.Linear(4, 2)
        self.sparse = SparseLinear(2, 2, 0.5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.sparse(self.head(self.table(ids)))


@check
def ddp_leaves_sharded_parameters_alone() -> None:
    full = whole_tables()["item"]
    tower = Tower(ShardedEmbedding(33, 4, all_ranks(), full=full)).to(KIND)
    tower.register_buffer("mine", there(torch.zeros(1)))
    tower._ddp_params_and_buffers_to_ignore = ["mine"]  # what the user left out stays out
    alone = Tower(nn.Embedding.from_pretrained(full.clone(), False, sparse=True))
    net = DDP(tower)
    assert tower._ddp_params_and_buffers_to_ignore == ["mine", "table.weight"]
    mine, theirs = RowAdamW(net.parameters(), lr=0.05), RowAdamW(alone.parameters(), lr=0.05)
    for step in range(4):
        mine.zero_grad()
        theirs.zero_grad()
        ids = drawn(33, 8, seed=step)
        net(there(share(ids))).square().mean().backward()
        alone(ids).square().mean().backward()
        same(clip_grad_norm_(net.parameters(), 0.1), clip_grad_norm_(alone.parameters(), 0.1))
        mine.step()
        theirs.step()
    same(tower.table.weight, tower.table.shards.mine(alone.table.weight.detach()))
    same(tower.head.weight, alone.head.weight)


def trained(steps: range, model: nn.Module, optimizer: RowAdamW) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss = sum(
            x.square().mean() for x in model({k: there(share(i)) for k, i in bags(step).items()}).values()
        )
        if step == 1:  # a dense gradient: state of all rows
            loss = loss + sum(p.square().sum() for p in model.parameters())
        loss.backward()
        optimizer.step()


@check
def a_checkpoint_holds_tables_and_their_state() -> None:
    def made() -> tuple[nn.Module, RowAdamW]:
        model = ShardedEmbeddingBagCollection(TABLES, all_ranks(), full=whole_tables())
        return model, RowAdamW(model.parameters(), lr=0.05)

    (model, optimizer), (again, other) = made(), made()
    trained(range(4), model, optimizer)
    save_checkpoint(FOLDER / "tables", 4, model, optimizer)
    trained(range(4, 7), model, optimizer)
    assert load_checkpoint(FOLDER / "tables", again, other) == 4
    trained(range(4, 7), again, other)
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert q.device.type == KIND
        same(q, p)


@check
def all_ranks_load_the_same_step_or_none() -> None:
    place, stale, rank = FOLDER / "views", FOLDER / "views-old", dist.get_rank()
    model = ShardedEmbedding(10, 2, all_ranks())
    for step in (1, 2):
        with torch.no_grad():
            model.weight.fill_(float(step))
        save_checkpoint(place, step, model)
        if step == 1 and rank == 0:
            shutil.copytree(place, stale)
        dist.barrier()
    again = ShardedEmbedding(10, 2, all_ranks(), full=torch.zeros(10, 2))
    seen = f"rank 0 step-{2:012d}, rank 1 step-{1:012d}"
    refused(seen, lambda: load_checkpoint(place if rank == 0 else stale, again))
    refused("rank 1 none", lambda: load_checkpoint(place if rank == 0 else FOLDER / "nowhere", again))
    if rank == 0:
        shutil.copytree(place / f"step-{2:012d}", stale / f"step-{2:012d}")
        (stale / f"step-{2:012d}" / ".metadata").write_bytes(b"another")
    dist.barrier()
    refused("of other contents", lambda: load_checkpoint(place if rank == 0 else stale, again))
    assert not again.weight.any()
    assert load_checkpoint(place, again) == 2 and bool((again.weight == 2).all())
    assert load_checkpoint(FOLDER / "empty", again) is None
    refused("rank 1 does not see it", lambda: save_checkpoint(FOLDER / f"own-{rank}", 1, model))


def main() -> None:
    torch.set_num_threads(1)
    if KIND == "cpu":
        dist.init_process_group("gloo")
    else:
        import device_group
        import walled

        walled.register()
        device_group.register()
        dist.init_process_group(device_group.NAME)
    told: dict[str, str] = {}
    for name, f in CHECKS.items():
        try:
            f()
            told[name] = "ok"
        except Exception:
            told[name] = traceback.format_exc()
        gc.collect()
        dist.barrier()
    (FOLDER / f"{dist.get_rank()}.json").write_text(json.dumps(told))
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
