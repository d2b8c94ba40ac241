"""Sparse training steps beside their peers, in one run: time, ratios, and peak memory.

    python benchmarks/sparse_train.py                    # every row, with the peers that import
    python benchmarks/sparse_train.py conv3d bag         # some rows
    python benchmarks/sparse_train.py --small            # small sizes: does it run?
    python benchmarks/sparse_train.py --avx2 linear10 linear5 linear1   # as on a CPU without AVX-512, peers too
    python benchmarks/sparse_train.py --traffic          # bytes a step between ranks, with 1, 2 and 4 of them

Peers take turns within a round, so that a busy machine slows all alike. A ratio is told twice: of the fastest rounds,
and the median over rounds. What the project wants to reach is told beside each row (sparse_train_targets.py). Memory is the peak of a fresh process
that makes three steps, the data and torch itself included.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

from sparse_train_rows import OURS, ROWS, Step
from sparse_train_targets import BOUND, told

HERE = Path(__file__)


def build(row: str, small: bool, only: str | None = None) -> tuple[dict[str, Step], dict[str, str]]:
    """The peers that take part, and why the others don't."""
    steps, skipped = {}, {}
    for name, make in ROWS[row](small).items():
        if only is not None and name != only:
            continue
        try:
            step = make()
            step()
        except Exception as why:  # a peer that is missing or fails is a finding, not the end of the benchmark
            if name == OURS:
                raise
            skipped[name] = f"{type(why).__name__}: {str(why).splitlines()[0][:90]}"
            continue
        steps[name] = step
    return steps, skipped


def clock(steps: dict[str, Step], seconds: float, cpu: bool) -> dict[str, list[float]]:
    once = {}
    now = time.process_time if cpu else time.perf_counter
    for name, step in steps.items():
        start = time.perf_counter()
        step()
        once[name] = time.perf_counter() - start
    rounds = max(3, min(60, int(seconds / 2 / sum(once.values()))))
    times: dict[str, list[float]] = {name: [] for name in steps}
    gc.disable()
    for _ in range(rounds):
        for name, step in steps.items():
            step()  # caches as its own program would have them, and the threads of the last one asleep
            start = now()
            step()
            times[name].append(now() - start)
    gc.enable()
    return times


def status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def peak(row: str, name: str, small: bool) -> float:
    """Of a fresh process, in MB."""
    words = [sys.executable, str(HERE), row, "--peak-of", name, *(["--small"] if small else [])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return float(done.stdout.split()[-1]) if done.returncode == 0 and done.stdout.split() else float("nan")


def peak_of(row: str, name: str, small: bool) -> None:
    steps, _ = build(row, small, name)
    steps[name]()
    steps[name]()
    print(status("VmHWM") / 1e6)


def run(row: str, small: bool, seconds: float, memory: bool, cpu: bool) -> dict[str, object]:
    steps, skipped = build(row, small)
    times = clock(steps, seconds, cpu)
    title = (ROWS[row].__doc__ or row).strip().splitlines()[0]
    print(f"\n{row}: {title}")
    ours = times[OURS]
    found: dict[str, object] = {}
    for name in sorted(times, key=lambda n: min(times[n])):
        best = min(times[name])
        ratio = best / min(ours)
        median = statistics.median(t / o for t, o in zip(times[name], ours, strict=True))
        mb = peak(row, name, small) if memory and name != BOUND else float("nan")
        print(f"  {name:38} {1e3 * best:9.2f} ms   {ratio:6.2f}x   median {median:6.2f}x   peak {mb:8.1f} MB")
        found[name] = {"ms": 1e3 * best, "ratio": ratio, "median": median, "peak_mb": mb}
    for name, why in skipped.items():
        print(f"  {name:38} {why}")
    for line in [] if small else told(row, {name: min(times[name]) / min(ours) for name in times}, skipped):
        print(f"  {line}")
    sys.stdout.flush()
    return found


# What makes numba, ATen, oneDNN, MKL and OpenBLAS leave AVX-512 alone. All read it when they load, so in a new process.
AVX2 = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+sse4.2,+popcnt,+avx,+avx2,+fma,+f16c,+bmi,+bmi2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}


def without_avx512() -> None:
    words = [word for word in sys.argv[1:] if word != "--avx2"]
    sys.exit(
        subprocess.run(
            [sys.executable, str(HERE), *words], env={**os.environ, **AVX2}, check=False
        ).returncode
    )


def traffic() -> None:
    print("bytes that a rank sends in a training step (forward and backward), the most of all ranks:")
    for ranks in (1, 2, 4):
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        if sys.platform == "linux":
            env["GLOO_SOCKET_IFNAME"] = "lo"
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        done = subprocess.run(
            [*words, str(HERE.with_name("sparse_train_traffic.py"))],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        print(done.stdout.strip() or done.stderr[-500:])


def main() -> None:
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", help=f"some of {', '.join(ROWS)}")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, default=20, help="for each row, roughly")
    parser.add_argument(
        "--cpu", action="store_true", help="CPU time instead of the clock's, for a busy machine"
    )
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--avx2", action="store_true", help="kernels and peers as on a CPU without AVX-512")
    parser.add_argument("--traffic", action="store_true")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    given = parser.parse_args()
    unknown = [r for r in given.rows if r not in ROWS]
    if unknown:
        parser.error(f"no row {unknown[0]!r}: there are {', '.join(ROWS)}")
    if given.peak_of:
        peak_of(given.rows[0], given.peak_of, given.small)
        return
    if given.avx2:
        without_avx512()
    if given.traffic:
        traffic()
        return
    found: dict[str, object] = {}
    for row in given.rows or ROWS:
        memory = not given.no_memory and sys.platform == "linux"
        found[row] = run(row, given.small, given.seconds, memory, given.cpu)
        if given.json:
            given.json.parent.mkdir(parents=True, exist_ok=True)
            given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
