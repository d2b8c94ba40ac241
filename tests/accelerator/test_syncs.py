"""How often the host waits for a device, and that what it does not wait for is right all the same."""

from __future__ import annotations

from conftest import ROOT, Child

STEPS = """
import torch, walled
from torch import nn
from gradmend.sparse.nn import SparseEmbedding
from gradmend.sparse.optim import RowAdagrad, RowAdam, RowAdamW, RowSGD

device = walled.register()

def ids(step):
    g = torch.Generator().manual_seed(step)
    return torch.randint(40 + 300 * step, (64,), generator=g)  # repeats, old rows and more new ones than room was made for

def trained(kind, options, dtype, to):
    torch.manual_seed(0)
    tables = nn.ModuleList([SparseEmbedding(3000, 4, dtype=dtype), SparseEmbedding(3000, 8, dtype=dtype), nn.Linear(4, 4, dtype=dtype)]).to(to)
    optimizer = kind(tables.parameters(), lr=0.001, **options)
    for step in range(9):
        optimizer.zero_grad()
        given = ids(step).to(to)
        loss = tables[2](tables[0](given)).abs().square().sum() + tables[1](given[:step]).abs().square().sum()
        if step == 5:
            loss = loss + tables[1].weight.abs().square().sum()  # a dense gradient: state of all rows
        loss.backward()
        if step == 3:
            tables[0].weight.grad = tables[0].weight.grad.coalesce()
        optimizer.step()
        if step == 6:
            state = optimizer.state_dict()
            optimizer = kind(tables.parameters(), lr=0.001, **options)
            optimizer.load_state_dict(state)
    if hasattr(optimizer, "settle"):
        optimizer.settle()
    return [p.detach().cpu() for p in tables.parameters()]

KINDS = [(RowAdam, {}), (RowAdamW, {}), (RowAdagrad, {"by_row": True}), (RowAdagrad, {}), (RowSGD, {}), (RowSGD, {"momentum": 0.9})]
for kind, options in KINDS:
    for dtype in (torch.float64, torch.complex128) if not options.get("by_row") else (torch.float64,):
        for mine, want in zip(trained(kind, options, dtype, device), trained(kind, options, dtype, "cpu")):
            torch.testing.assert_close(mine, want)
print("equal")
"""

ERRORS = """
import torch, walled
from gradmend.sparse import check_ids
from gradmend.sparse.nn import SparseEmbedding, SparseEmbeddingBag
from gradmend.sparse.optim import RowAdam

device = walled.register()
tables = torch.nn.ModuleList([SparseEmbedding(10, 4), SparseEmbedding(10, 4)]).to(device)
optimizer = RowAdam(tables.parameters())

def refused(words, f):
    try:
        f()
    except Exception as error:
        assert words in str(error), error
        return
    raise AssertionError("nothing was raised: " + words)

def gradient(row, value):
    return torch.sparse_coo_tensor(torch.tensor([[row, 1]]), torch.full((2, 4), value), (10, 4), check_invariants=False).to(device)

before = [p.detach().clone() for p in tables.parameters()]
for row, value, words in ((2, float("nan"), "parameter 1 of group 0, of the shape (10, 4), holds NaN"), (2, float("inf"), "holds NaN or infinity")):
    tables[0].weight.grad, tables[1].weight.grad = gradient(3, 1.0), gradient(row, value)
    refused(words, optimizer.step)
    assert all(torch.equal(p, q) for p, q in zip(tables.parameters(), before))
bad = torch.tensor([1, 12], device=device)
refused("out of", lambda: tables[0](bad))  # the device's own error
bag = SparseEmbeddingBag(10, 4).to(device)
refused("", lambda: bag(bad[None]))
refused("the last offset is not", lambda: SparseEmbeddingBag(10, 4, include_last_offset=True).to(device)(bad % 3, torch.tensor([0, 1]).to(device)))
check_ids()
refused("ids go from 1 to 12, and the table has the rows 0 to 9", lambda: tables[0](bad))
check_ids(False)
refused("out of", lambda: tables[0](bad))
print("refused")
"""

ONCE = {"RowAdam", "RowAdamW", "RowAdagrad", "RowSGD", "sharded look-up"}


def test_the_host_waits_once_for_a_step_and_not_for_operations(child: Child) -> None:
    done = child(str(ROOT / "benchmarks" / "syncs.py"))
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    found = {name: (int(reads), int(shapes)) for name, reads, shapes in rows}
    assert len(found) > 30 and sum(found.pop("convolution on a new cloud, backward")) > 0  # it does count
    for name, (reads, shapes) in found.items():
        assert reads <= (name.split(",")[0] in ONCE) and shapes == 0, (name, reads, shapes)


def test_row_optimizers_step_on_the_device_as_on_the_cpu(child: Child) -> None:
    done = child("-c", STEPS)
    assert done.stdout.strip().endswith("equal"), done.stdout + done.stderr[-3000:]


def test_bad_gradients_and_ids_raise_on_the_device(child: Child) -> None:
    done = child("-c", ERRORS)
    assert done.stdout.strip().endswith("refused"), done.stdout + done.stderr[-3000:]
