"""The kernels on CPUs that this machine may not be: features are chosen here, never taken from the machine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gradmend.sparse.kernels import gate

AVX2 = "+sse4.2,+popcnt,+avx,+avx2,+fma,+f16c,+bmi,+bmi2"
CPUS = {
    "AVX-512": ("skylake-avx512", f"{AVX2},+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512cd"),
    "AVX2": ("haswell", AVX2),
    "none": ("x86-64", "+sse2"),
}

EQUAL_DENSE = """
import sys, torch
from gradmend.sparse.kernels import gate, matmul, segment
matmul.SMALL = 0
torch.manual_seed(0)
mask = torch.rand(23, 19) < 0.3
mask[5] = False
row, col = mask.nonzero(as_tuple=True)
perm = torch.argsort(col, stable=True)
zero = torch.zeros(1, dtype=torch.int64)
crow, crow_t = (torch.cat([zero, mask.sum(d).cumsum(0)]) for d in (1, 0))
for spec in sys.argv[1:]:
    name, k = spec.split(":")
    dtype, k = getattr(torch, name), int(k)
    assert gate.plan(dtype, k) is not None, spec
    v, X, G = torch.randn(len(col)).to(dtype), torch.randn(19, k).to(dtype), torch.randn(23, k).to(dtype)
    D = torch.zeros(23, 19, dtype=torch.float64).masked_scatter_(mask, v.double())
    close = {"atol": 0.3, "rtol": 0.05} if dtype.itemsize == 2 else {"atol": 1e-4, "rtol": 1e-4}
    dv, dX = matmul.spmm_backward(crow, col, crow_t, row[perm], perm, v, X, G)
    for got, want in (
        (matmul.spmm(crow, col, v, X), D @ X.double()),
        (matmul.sddmm(crow, col, G, X), (G.double() @ X.double().T)[mask]),
        (dv, (G.double() @ X.double().T)[mask]),
        (dX, D.T @ G.double()),
    ):
        torch.testing.assert_close(got.double(), want, **close)
print(gate.plan(torch.float32, 47).runs)
"""


def on_cpu(cpu: str, code: str, *args: str, cache: Path) -> str:
    name, features = CPUS[cpu]
    env = {
        **os.environ,
        "NUMBA_CPU_NAME": name,
        "NUMBA_CPU_FEATURES": features,
        "NUMBA_CACHE_DIR": str(cache),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *args], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def runs_here(cpu: str) -> bool:
    """Only what the machine can execute is executed; what it can't is compiled (below)."""
    from llvmlite.binding import get_host_cpu_features

    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    has = get_host_cpu_features()
    return all(has.get(word[1:], False) for word in CPUS[cpu][1].split(","))


@pytest.mark.slow
@pytest.mark.parametrize(("cpu", "runs"), [("AVX2", "(48, 0, -8)"), ("none", "(32, 16, 15)")])
def test_products_equal_dense_whatever_the_width(cpu: str, runs: str, tmp_path: Path) -> None:
    if not gate.available() or not runs_here(cpu):
        pytest.skip(f"this machine can't execute {cpu}")
    specs = ["float32:47", "float64:3", "bfloat16:33"]
    assert on_cpu(cpu, EQUAL_DENSE, *specs, cache=tmp_path) == runs


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_every_width_has_a_plan_of_whole_lanes_and_a_tail(
    cpu: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = {word[1:]: True for word in CPUS[cpu][1].split(",")}
    monkeypatch.setattr(gate, "_features", lambda: features)
    gate.plan.cache_clear()
    try:
        lanes, masks = gate.lanes_of(gate._TAGS[dtype], features)
        for k in range(1, 300):
            plan = gate.plan(dtype, k)
            assert plan is not None
            width, tail, valid = plan.runs
            last = tail or width
            there = k % width if tail else k
            # Every element is in a run, and no run has a register without an element.
            assert (
                width <= 8 * lanes and last * (tail == 0 or 1) >= 0 and (k % width <= last if tail else True)
            )
            if valid == last:
                assert there % last == 0
            elif valid < 0:
                assert masks and last + valid < there <= last
            else:
                assert not masks and valid == there <= last < there + lanes
    finally:
        gate.plan.cache_clear()


COMPILE = """
import sys
import llvmlite.binding as llvm
from gradmend.sparse.kernels import compiled, gate
import numba
from numba.core import types
llvm.initialize_all_targets(); llvm.initialize_all_asmprinters()
triple, cpu, features, *runs = sys.argv[1:]
kernel = compiled.spmm("f32", tuple(int(n) for n in runs), True)
kernel.compile((types.int64,) * 11)
text = kernel.inspect_llvm(kernel.signatures[0])
ours = llvm.parse_assembly(text)
ours.triple = triple
machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=3)
ours.data_layout = str(machine.target_data)
print(machine.emit_assembly(ours))
"""


def assembly(triple: str, cpu: str, features: str, runs: tuple[int, int, int], cache: Path) -> str:
    words = [triple, cpu, features, *(str(n) for n in runs)]
    # Compiled for the plainest CPU first, so that what LLVM is asked for has nothing of this machine in it.
    return on_cpu("none", COMPILE, *words, cache=cache)


@pytest.mark.skipif(not gate.available(), reason="no compiler")
def test_arm_compiles_to_vectors_without_masks(tmp_path: Path) -> None:
    lanes, masks = gate.lanes_of("f32", {"neon": True, "fp-armv8": True})
    assert (lanes, masks) == (4, False)
    text = assembly("aarch64-unknown-linux-gnu", "generic", "+neon", gate.runs(47, lanes, masks), tmp_path)
    assert "fmla" in text and ".4s" in text  # vectors, multiplied and added at once
    assert "fmaf" not in text and "prfm" in text  # no call for each element; prefetch


INSPECT = """
import torch
from numba.core import types
from gradmend.sparse.kernels import compiled, gate
kernel = compiled.spmm("f32", gate.plan(torch.float32, 47).runs, False)
kernel.compile((types.int64,) * 11)
print(kernel.inspect_asm(kernel.signatures[0]))
"""


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="numba compiles for its own architecture"
)
@pytest.mark.skipif(not gate.available(), reason="no compiler")
@pytest.mark.parametrize(("cpu", "found"), [("AVX-512", ("zmm", "{%k")), ("AVX2", ("ymm", "vmaskmovps"))])
def test_intel_compiles_to_its_widest_registers_and_masks(
    cpu: str, found: tuple[str, ...], tmp_path: Path
) -> None:
    text = on_cpu(cpu, INSPECT, cache=tmp_path)
    assert "vfmadd" in text and all(word in text for word in found)
