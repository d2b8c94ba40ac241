"""The kernels of training steps: what they refuse, and that they are right on CPUs that this machine may not be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_kernel_cpus import on_cpu, runs_here

from gradmend.sparse import SparseError
from gradmend.sparse.kernels import convolve, gate, grouping, rows

PTR, SOURCE, TARGET = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])
X, W, G = torch.ones(3, 4), torch.ones(2, 4, 5), torch.ones(3, 5)


def touched(index: list[int], values: torch.Tensor, size: tuple[int, ...] = (4, 8)) -> Any:
    p = torch.zeros(4, 8)
    return rows.touched(p, torch.sparse_coo_tensor([index], values, size, check_invariants=False))


def freed() -> torch.Tensor:
    table = torch.ones(3, 4)
    table.untyped_storage().resize_(0)
    return table


GOOD = torch.ones(2, 8)
WRONG: dict[str, Callable[[], Any]] = {
    "channels": lambda: convolve.gather(PTR, SOURCE, TARGET, X, W[:, :3], 3),
    "offsets": lambda: convolve.gather(PTR, SOURCE, TARGET, X, W[:1], 3),
    "features of one dimension": lambda: convolve.gather(PTR, SOURCE, TARGET, X[0], W, 3),
    "devices": lambda: convolve.gather(PTR, SOURCE, TARGET, X.to("meta"), W, 3),
    "gradient of one dimension": lambda: convolve.outer(PTR, SOURCE, TARGET, X, G[0]),
    "keys that fall": lambda: convolve.pairs(torch.tensor([3, 1]), SOURCE, PTR),
    "keys twice": lambda: convolve.pairs(torch.tensor([1, 1]), SOURCE, PTR),
    "rows outside": lambda: grouping.grouped(torch.tensor([0, 4]), 4),
    "rows below 0": lambda: grouping.grouped(torch.tensor([0, -1]), 4),
    "look-ups outside": lambda: rows.take(X, torch.tensor([0, 3])),
    "look-ups below 0": lambda: rows.take(X, torch.tensor([0, -1])),
    "look-ups in a vector": lambda: rows.take(X[0], SOURCE),
    "look-ups on another device": lambda: rows.take(X, SOURCE.to("meta")),
    "look-ups in memory that was freed": lambda: rows.take(freed(), SOURCE),
    "a gradient of another shape": lambda: touched([0, 1], torch.ones(2, 7), (4, 7)),
    "a gradient of other rows": lambda: touched([0, 9], GOOD),
    "state of other rows": lambda: rows.adagrad(
        torch.zeros(4, 8),
        touched([0, 3], GOOD),
        torch.tensor([0, 9]),
        torch.zeros(4, 8),
        eps=0,
        size=1,
        keep=1,
    ),
    "state of another width": lambda: rows.adagrad(
        torch.zeros(4, 8),
        touched([0, 3], GOOD),
        torch.tensor([0, 3]),
        torch.zeros(4, 7),
        eps=0,
        size=1,
        keep=1,
    ),
}


@pytest.fixture(params=["compiled", "plain"])
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    small = 0 if request.param == "compiled" else float("inf")
    for module, name in ((rows, "SMALL"), (convolve, "SMALL"), (convolve, "_FEW"), (grouping, "_FEW")):
        monkeypatch.setattr(module, name, small)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_operands_are_refused(road: None, name: str) -> None:
    # What is looked up is told by torch's own index_select on the plain road, before anything is changed.
    torchs = (IndexError, RuntimeError) if name.startswith(("look-ups", "state of other rows")) else ()
    with pytest.raises((SparseError, *torchs)):
        WRONG[name]()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("d", [1, 3, 16, 47, 128, 131, 300])
@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)
def test_look_ups_are_torchs_to_the_last_bit(
    dtype: torch.dtype, d: int, index: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "SMALL", 0)
    table = torch.randn(50, d, dtype=dtype)
    table[3], table[4] = float("nan"), -0.0
    for t in (table, table.flip(1), torch.randn(50, 2 * d, dtype=dtype)[:, ::2], table[:1].expand(50, d)):
        for n in (0, 1, 2, 40):
            ids = torch.randint(0, 50, (n,), dtype=index)
            got, want = rows.take(t, ids), t.index_select(0, ids)
            assert got.shape == want.shape and torch.equal(got.view(torch.uint8), want.view(torch.uint8))
    recorded = torch.randn(50, d, dtype=dtype, requires_grad=True)
    assert rows.take(recorded, torch.tensor([1, 2])).requires_grad


EQUAL = """
import sys, torch
from gradmend.sparse.kernels import convolve, gate, grouping, rows
rows.SMALL = convolve.SMALL = convolve._FEW = grouping._FEW = 0
torch.manual_seed(0)
keys = torch.randperm(400)[:150].sort().values
deltas = torch.tensor([-21, -20, -1, 0, 1, 20, 21])
found = convolve.pairs(keys, keys, deltas)
again = convolve.pairs(keys, keys, deltas, mirrored=True)
assert all(torch.equal(a, b) for a, b in zip(found, again))
convolve._FEW = 10**9
assert all(torch.equal(a, b) for a, b in zip(found, convolve.pairs(keys, keys, deltas)))
for spec in sys.argv[1:]:
    name, c_in, c_out = spec.split(":")
    dtype, c_in, c_out = getattr(torch, name), int(c_in), int(c_out)
    X, W, G = torch.randn(150, c_in, dtype=dtype), torch.randn(7, c_in, c_out, dtype=dtype), torch.randn(150, c_out, dtype=dtype)
    p = torch.randn(30, c_out, dtype=dtype)
    index = torch.randint(0, 30, (50,))
    grad = torch.sparse_coo_tensor(index[None], torch.randn(50, c_out, dtype=dtype), p.shape)
    made = []
    for small in (0, float("inf")):
        rows.SMALL = convolve.SMALL = small
        q, m, v = p.clone(), torch.zeros_like(p), torch.ones_like(p)
        t = rows.touched(q, grad)
        rows.adam(q, t, t.rows, m, v, beta1=0.9, beta2=0.99, eps=1e-8, size=0.1, keep=0.9)
        r, s = p.clone(), torch.zeros(30, dtype=dtype)
        rows.adagrad(r, t, t.rows, s, eps=1e-8, size=0.1, keep=0.9)
        u, b = p.clone(), torch.ones_like(p)
        rows.sgd(u, t, t.rows, b, size=0.1, decay=0.1, momentum=0.9, dampening=0.1, nesterov=False, known=20)
        looked = rows.take(p, index)
        made.append([convolve.gather(*found, X, W, 150), convolve.outer(*found, X, G), q, m, v, r, s, u, b, looked])
    torch.testing.assert_close(*made, rtol=1e-4, atol=1e-4)
print("equal")
"""


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["AVX2", "none"])
def test_kernels_equal_torchs_ops_on_other_cpus(cpu: str, tmp_path: Path) -> None:
    if not gate.available() or not runs_here(cpu):
        pytest.skip(f"this machine can't execute {cpu}")
    specs = ["float32:4:19", "float64:3:16"] if cpu == "AVX2" else ["float32:4:19"]
    assert on_cpu(cpu, EQUAL, *specs, cache=tmp_path) == "equal"
