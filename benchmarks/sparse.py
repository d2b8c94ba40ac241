"""Sparse training against its peers: time, memory, and how far from the least traffic possible.

    make bench-sparse                                       # every row with every peer, and docs/sparse-benchmarks.md
    python benchmarks/sparse.py                             # every row, with the peers that import
    python benchmarks/sparse.py graph64 linear5             # some rows
    python benchmarks/sparse.py --json build/sparse.json    # kept there; rows that are run again replace the old ones

The peers live in an environment of their own, so that none can disturb the package's: `make bench-venv`.
`benchmarks/sparse_report.py build/sparse.json` makes the page and its picture.

Times are of one process, the peers taking turns (a call to warm up, then the measured ones), the best of some rounds. Memory is of a fresh process each: the
peak during one step above what was there before, less the result and the gradients that any way has to return.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sparse_libraries  # noqa: F401  # registers its peers, as the next does
import sparse_small  # noqa: F401
import torch
from sparse_peers import PEERS, Skip, Step
from sparse_problems import PROBLEMS, Problem, uniform

OURS = "gradmend"


def build(problem: Problem, only: list[str] | None) -> tuple[dict[str, Step], dict[str, str]]:
    """The peers that can take part in a row, and why the others can't."""
    steps, skipped = {}, {}
    reference: tuple[Any, ...] | None = None
    for name, make in PEERS[problem.kind].items():
        if only and name != OURS and name not in only:
            continue
        try:
            step = make(problem)
            found = step()
        except Skip as why:
            skipped[name] = str(why)
            continue
        except ImportError as why:
            skipped[name] = f"not installed ({why})"
            continue
        except Exception as why:  # a peer that fails is a finding, not the end of the benchmark
            skipped[name] = f"{type(why).__name__}: {str(why)[:100]}"
            continue
        if name == OURS:
            reference = found
        elif reference is not None and (wrong := differs(reference, found)):
            skipped[name] = wrong
            continue
        steps[name] = step
    return steps, skipped


def differs(want: tuple[Any, ...], got: tuple[Any, ...]) -> str:
    for part, a, b in zip(("result", "gradient of the values", "gradient of X"), want, got, strict=False):
        if b is None:
            continue
        b = b if b.layout == torch.strided else b.coalesce().values() if b.is_sparse else b.values()
        if a.shape != b.shape or not torch.allclose(a, b, rtol=1e-3, atol=1e-3 * float(a.abs().max())):
            return f"its {part} differs from ours"
    return ""


def clock(
    steps: dict[str, Step], seconds: float, now: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Rounds in which each takes a turn, so that a busy moment of the machine hits all alike."""
    once = {}
    for name, step in steps.items():
        start = now()
        step()
        once[name] = max(now() - start, 1e-6)
    inner = {name: max(1, int(0.002 / t)) for name, t in once.items()}
    rounds = max(2, min(200, int(seconds / sum(once[n] * (inner[n] + 1) for n in steps))))
    times: dict[str, list[float]] = {name: [] for name in steps}
    gc.disable()
    for _ in range(rounds):
        for name, step in steps.items():
            step()  # caches as its own program would have them, and the threads of the last one asleep
            start = now()
            for _ in range(inner[name]):
                step()
            times[name].append((now() - start) / inner[name])
    gc.enable()
    return times


def processor_ms(steps: dict[str, Step], seconds: float) -> dict[str, float]:
    """Milliseconds of the processor on one thread: what other programs on the machine don't change."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {name: 1e3 * min(t) for name, t in clock(steps, seconds, time.process_time).items()}
    finally:
        torch.set_num_threads(threads)


def bandwidth() -> float:
    """Bytes a second of a large copy, read and written."""
    a = torch.ones(32 << 20)
    b = torch.empty_like(a)
    best = 1e9
    for _ in range(7):
        start = time.perf_counter()
        b.copy_(a)
        best = min(best, time.perf_counter() - start)
    return 8 * a.numel() / best


def status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def peak_of(row: str, name: str) -> dict[str, Any]:
    """In this process, which should be fresh: the peak of one step above what was there before it."""
    problem = PROBLEMS[row]()
    step = PEERS[problem.kind][name](problem)
    small = shrunk(problem)
    for _ in range(2):  # libraries load and compile
        PEERS[problem.kind][name](small)()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = status("VmRSS")
    kept = step()
    peak = status("VmHWM") - before
    del kept
    return {"peak": peak, "above": max(0, peak - problem.results_bytes)}


def shrunk(p: Problem) -> Problem:
    """The same work on few entries: everything is loaded and compiled, nothing large is allocated."""
    n = min(p.rows, 3000)
    # Without a dense operand, or with one of one column, it takes more entries to be worth a compiled kernel.
    wide = p.kind == "spsp" or (p.X is not None and p.X.shape[-1] > 1)
    index = uniform(n, n, 20_000 if wide else 200_000)
    values = torch.randn(*p.values.shape[:-1], index.shape[1])
    made = Problem(p.name, p.kind, n, n, index, values, batch=p.batch)
    if p.kind == "sddmm":
        made.values, made.X = (torch.randn(p.batch, n, p.X.shape[-1]) for _ in range(2))
        made.G = torch.randn(p.batch, index.shape[1])
        return made
    if p.kind == "linear":
        made.X = made.G = torch.randn(p.X.shape[0], n)
    elif p.X is not None:
        made.X = made.G = torch.randn(*p.X.shape[:-2], n, p.X.shape[-1])
    elif "other" in p.extra:
        made.extra["other"] = uniform(n, n, 20_000, seed=1)
        made.extra["values"] = torch.randn(made.extra["other"].shape[1])
        made.extra["rows"] = torch.randint(n, (n // 4,))
    else:
        made.G = torch.randn(n if p.kind == "sum" else index.shape[1])
    return made


def measure_memory(row: str, names: list[str]) -> dict[str, Any]:
    found = {}
    for name in names:
        call = [sys.executable, __file__, "--peak", row, name]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        lines = done.stdout.strip().splitlines()
        found[name] = json.loads(lines[-1]) if done.returncode == 0 and lines else None
    return found


def run_row(
    row: str, seconds: float, speed: float, only: list[str] | None, before: dict[str, float]
) -> dict[str, Any]:
    problem = PROBLEMS[row]()
    steps, skipped = build(problem, only)
    times = clock(steps, seconds)
    alone = processor_ms(steps, seconds / 3)
    for name, ms in before.items():  # a round of an earlier run
        times.setdefault(name, []).append(ms / 1e3)
    peers = {name: min(t) for name, t in times.items() if not name.startswith(OURS)}
    best = min(peers, key=lambda n: peers[n])
    ours = min(times[OURS])
    return {
        "row": row,
        "name": problem.name,
        "nnz": problem.nnz,
        "best_ms": {n: 1e3 * min(t) for n, t in times.items()},
        "median_ms": {n: 1e3 * statistics.median(t) for n, t in times.items()},
        "one_thread_cpu_ms": alone,
        "best_peer": best,
        "speedup": peers[best] / ours,
        "least_bytes": problem.least_bytes,
        "over_traffic": ours / (problem.least_bytes / speed),
        "results_mb": problem.results_bytes / 1e6,
        "memory": {},
        "skipped": skipped,
    }


def show(r: dict[str, Any]) -> None:
    print(f"\n{r['name']}  ({r['nnz']:,} entries)", flush=True)
    for name, ms in sorted(r["best_ms"].items(), key=lambda item: item[1]):
        peak = r["memory"].get(name)
        extra = "" if not peak else f"  {peak['above'] / 1e6:9.1f} MB above results"
        cpu = r.get("one_thread_cpu_ms", {}).get(name)
        alone = "" if cpu is None else f", one thread's CPU {cpu:.3f}"
        print(f"  {name:28s} {ms:10.3f} ms (median {r['median_ms'][name]:.3f}{alone}){extra}")
    for name, why in r["skipped"].items():
        print(f"  {name:28s} skipped: {why}")
    print(
        f"  {r['speedup']:.2f}x the best peer ({r['best_peer']}); {r['over_traffic']:.1f}x the traffic bound",
        flush=True,
    )


def load(path: str | None) -> tuple[dict[str, Any], float]:
    """The rows that earlier runs have left there, and the best copy they saw."""
    if path is None or not Path(path).exists():
        return {}, 0.0
    kept = json.loads(Path(path).read_text())
    return {r["row"]: r for r in kept["rows"]}, 1e9 * kept["about"]["copy_gb_s"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", help=f"some of: {', '.join(PROBLEMS)}")
    parser.add_argument("--seconds", type=float, default=10, help="of timing for each row")
    parser.add_argument("--peers", nargs="+", help="only these, besides ours")
    parser.add_argument("--part", choices=("all", "time", "memory"), default="all")
    parser.add_argument(
        "--again", action="store_true", help="the best of this run and of the one that --json keeps"
    )
    parser.add_argument("--json", help="where results are kept and added to")
    parser.add_argument("--peak", nargs=2, metavar=("ROW", "PEER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    if options.peak:
        print(json.dumps(peak_of(*options.peak)))
        return
    unknown = [row for row in options.rows if row not in PROBLEMS]
    if unknown:
        parser.error(f"no row {unknown[0]}; the rows are {', '.join(PROBLEMS)}")
    found, speed = load(options.json)
    speed = max(speed, bandwidth())
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, copy {speed / 1e9:.1f} GB/s")
    about = {"torch": torch.__version__, "threads": torch.get_num_threads(), "copy_gb_s": speed / 1e9}
    for row in options.rows or PROBLEMS:
        if options.part != "memory":
            kept = found.get(row, {})
            best = kept.get("best_ms", {}) if options.again else {}
            found[row] = run_row(row, options.seconds, speed, options.peers, best)
            found[row]["memory"] = kept.get("memory", {})
        if options.part != "time" and not row.startswith("tiny"):
            if row not in found:
                parser.error(f"the memory of {row} is measured after its time: no {options.json} has it")
            found[row]["memory"] = measure_memory(row, list(found[row]["best_ms"]))
        show(found[row])
        if options.json:  # after each row: a run that is cut short keeps what it has
            rows = [found[name] for name in PROBLEMS if name in found]
            Path(options.json).parent.mkdir(parents=True, exist_ok=True)
            Path(options.json).write_text(json.dumps({"about": about, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
