"""How fast is `gradmend check`? In one run with torchfix, flake8 and ruff (its own rules), on transformers' sources.

python benchmarks/check.py [--sources DIR] [--files N]

Prints seconds and lines per second of each tool that is installed, cold and with a warm cache; then how the cost grows: a
generated project of 2 million lines, and one function of 20,000.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

BIN = Path(sys.executable).parent
CHECK = [str(BIN / "gradmend"), "check", "--isolated", "-q", "--no-cache", "--output-format", "concise"]
PROGRAM = """import torch
import torch.nn as nn


class Block{i}(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.a = nn.Linear(dim, dim)
        self.b = nn.Linear(dim, dim)

    def forward(self, x):
        y = torch.relu(self.a(x))
        z = self.b(y)
        z += x
        if self.training:
            z = z * 2
        out = torch.zeros_like(z)
        out[0] = z[0]
        return out + z
"""


class Took(NamedTuple):
    wall: float
    cpu: float  # of all its processes: what a busy machine changes least


def timed(words: list[str]) -> Took:
    before, started = os.times(), time.perf_counter()
    done = subprocess.run(words, capture_output=True, check=False)
    wall, after = time.perf_counter() - started, os.times()
    if done.returncode not in (0, 1):
        print(done.stderr.decode(errors="replace")[-500:])
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return Took(wall, cpu)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sources", type=Path, default=Path("build/corpus/transformers/transformers"))
    parser.add_argument("--files", type=int, default=0, help="only that many files, evenly taken; 0 for all")
    parser.add_argument("--grow", type=int, default=2_000_000, help="lines of the generated project")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gradmend-bench-") as folder:
        home = Path(folder) / "sources"
        if args.sources.exists():
            _copy(args.sources, home, args.files)
            _compare(home, Path(folder))
        else:
            print(f"no sources in {args.sources}: `make check-corpus` brings them")
        _growth(Path(folder), args.grow)
    return 0


def _copy(source: Path, target: Path, most: int) -> None:
    files = sorted(source.rglob("*.py"))
    step = max(1, len(files) // most) if most else 1
    for file in files[::step]:
        to = target / file.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, to)


def _lines(home: Path) -> int:
    return sum(p.read_bytes().count(b"\n") for p in home.rglob("*.py"))


def _compare(home: Path, folder: Path) -> None:
    lines = _lines(home)
    files = sum(1 for _ in home.rglob("*.py"))
    print(f"{files} files, {lines:,} lines, {os.cpu_count()} cores")
    cache = str(folder / "cache")
    ours = [
        str(BIN / "gradmend"),
        "check",
        "--isolated",
        "-q",
        "--output-format",
        "concise",
        "--cache-dir",
        cache,
        str(home),
    ]
    rows = [("gradmend check", timed(ours)), ("gradmend check, warm", timed(ours))]
    peers = {
        "torchfix": [str(BIN / "torchfix"), "--select=ALL", str(home)],
        "flake8": [str(BIN / "flake8"), "--isolated", "--select=E9,F", str(home)],
        "ruff": [str(BIN / "ruff"), "check", "--isolated", "--no-cache", str(home)],
    }
    for name, words in peers.items():
        if Path(words[0]).exists():
            rows.append((name, timed(words)))
        else:
            print(f"{name} is not installed")
    ours_took = rows[0][1]
    for name, took in rows:
        print(
            f"{name:22} {took.wall:8.2f} s  {lines / took.wall:12,.0f} lines/s  {took.wall / ours_took.wall:6.2f}x gradmend's time; "
            f"{took.cpu:8.2f} s of CPU, {took.cpu / ours_took.cpu:6.2f}x gradmend's"
        )


def _growth(folder: Path, most: int) -> None:
    for lines in (most // 4, most // 2, most):
        home = folder / f"grown{lines}"
        home.mkdir()
        per_file = 20 * 20
        for i in range(lines // per_file):
            (home / f"m{i}.py").write_text("\n\n".join(PROGRAM.replace("{i}", str(j)) for j in range(20)))
        took = timed([*CHECK, str(home)])
        count = _lines(home)
        print(
            f"generated, {count:>9,} lines {took.wall:8.2f} s  {count / took.wall:12,.0f} lines/s; {took.cpu:8.2f} s of CPU"
        )
        shutil.rmtree(home)
    for lines in (5_000, 10_000, 20_000):
        body = "".join(
            f"    if x.a{i}:\n        y += 1\n    z{i} = y * x\n    y[0] = 1\n" for i in range(lines // 4)
        )
        file = folder / "long.py"
        file.write_text(f"import torch\n\n\ndef f(x, w):\n    y = torch.tanh(w(x))\n{body}    return y\n")
        took = timed([*CHECK, str(file)])
        print(f"one function, {lines:>6,} lines {took.wall:8.2f} s; {took.cpu:8.2f} s of CPU")
    file.write_text("import torch\n\nx = torch.ones(3)\nx += 1\n")
    starts = sorted(timed([*CHECK, str(file)]) for _ in range(15))
    print(
        f"one small file: {starts[0].wall * 1000:.0f} ms, {min(t.cpu for t in starts) * 1000:.0f} ms of CPU"
    )


if __name__ == "__main__":
    raise SystemExit(main())
