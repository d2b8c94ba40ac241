"""Runs a program of two ranks many times, plain and under Gradmend, on quiet and on busy cores, and counts how it ended.

    python tools/torchrun_runs.py 50             # 300 runs of torchrun: an hour
    python tools/torchrun_runs.py 50 --untidy    # the program leaves its process group to the end of Python
    python tools/torchrun_runs.py 50 --end       # tests/silent/ranks_end.py instead: it ends at the worst moment

Prints a table. "Quiet" adds no work of its own to what the machine does; "busy" keeps every core busy. An abort's last words
go to stderr.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parents[1] / "tests" / "silent"
TORCHRUN = [
    *("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"),
    *("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
]
WAYS = {
    "plain": [],
    "run": ["-m", "gradmend", "run"],
    "run --heal": ["-m", "gradmend", "run", "--heal"],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=int)
    parser.add_argument("--untidy", action="store_true", help="do not end the process group")
    parser.add_argument(
        "--end", action="store_true", help="two processes without torchrun, ending at the worst moment"
    )
    parser.add_argument("--cores", nargs="+", default=["quiet", "busy"], choices=["quiet", "busy"])
    args = parser.parse_args()
    print(
        "| cores | way | runs | ended well | aborted | failed otherwise |\n|---|---|---|---|---|---|",
        flush=True,
    )
    for cores in args.cores:
        with busy() if cores == "busy" else nullcontext():
            for way, words in WAYS.items():
                ends = Counter(once(command(words, args)) for _ in range(args.runs))
                counts = " | ".join(str(ends[end]) for end in ("well", "aborted", "failed"))
                print(f"| {cores} | {way} | {args.runs} | {counts} |", flush=True)


def command(words: list[str], args: argparse.Namespace) -> list[str]:
    if args.end:
        return [*words, str(PROGRAMS / "ranks_end.py")]
    untidy = ["untidy"] if args.untidy else []
    return [*TORCHRUN, *words, str(PROGRAMS / "ranks_program.py"), "clean", *untidy]


def once(words: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
    )
    if done.returncode == 0:
        return "well"
    print(done.stderr[-2000:], file=sys.stderr, flush=True)
    # torchrun tells the signal of a rank; a process without it ends by the signal.
    return "aborted" if done.returncode == -6 or "SIGABRT" in done.stderr else "failed"


@contextmanager
def busy() -> Iterator[None]:
    """Two endless loops for each core."""
    cores = os.cpu_count() or 1
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * cores)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    main()
