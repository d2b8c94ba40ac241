"""Trees of Gradmend beside each other, in one run: what a change costs, row by row of overhead.py and heal.py.

    python benchmarks/trees.py NAME=PYTHON [NAME=PYTHON ...] [--rounds N] [--only TEXT] [--write OUT.md]

Each PYTHON is the interpreter of a tree's environment; `NAME=pure:PYTHON` runs it as pure Python. The first is what the
others are compared with. The programs are those of this folder, whatever the tree. One process a tree stays open for
each row, and they take turns: within a round each runs each row's mode once, so that a busy machine slows all alike. It
counts CPU time, on one thread; a number is the fastest of all rounds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MODES = ("plain", "install", "watch", "heal", "watch(paranoid)")
ENTER = "to enter and leave"
ROUNDS = {ENTER: 4, "transformer": 0.5, "4,000 slices": 0.5}  # times as many as the others


class Child:
    """One tree's process for one row: a word in, seconds out."""

    def __init__(self, python: str, row: str) -> None:
        pure = python.startswith("pure:")
        self.process = subprocess.Popen(
            [python.removeprefix("pure:"), __file__, "--serve", row],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GRADMEND_PURE": "1" if pure else ""},
        )

    def ask(self, mode: str) -> float:
        assert self.process.stdin and self.process.stdout
        print(mode, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def rows() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each row with what is run of it."""
    import overhead

    import heal

    for name in overhead.WORKLOADS:
        yield name, MODES
    yield ENTER, MODES[1:4]
    for name in (*heal.PROGRAMS, heal.COLD):
        yield name, ("clones by hand", "heal")


def serve(row: str) -> None:
    import time
    import warnings

    import overhead
    import torch

    import heal

    warnings.simplefilter("ignore")  # what heal() tells of each program
    torch.set_num_threads(1)
    heal.clock = overhead.clock = time.process_time
    if row == heal.COLD:
        for line in sys.stdin:
            command = [sys.executable, str(HERE / "heal.py"), "--cpu", "--first-use", line.strip()]
            print(
                float(subprocess.run(command, capture_output=True, text=True, check=True).stdout), flush=True
            )
        return
    if row in overhead.WORKLOADS:
        make, steps = overhead.WORKLOADS[row]
        torch.manual_seed(0)
        step = make()
        step()
        for line in sys.stdin:
            print(overhead.timed(step, line.strip(), steps), flush=True)
    elif row == ENTER:
        for line in sys.stdin:
            start = time.process_time()
            for _ in range(5):
                with overhead.MODES[line.strip()]():
                    pass
            print((time.process_time() - start) / 5, flush=True)
    else:
        program = heal.PROGRAMS[row]()
        for line in sys.stdin:
            context, clones = heal.CONTEXTS[line.strip()]
            print(heal.once(program, context, clones)[0], flush=True)


def measure(
    trees: dict[str, str], row: str, modes: tuple[str, ...], rounds: int
) -> dict[str, dict[str, float]]:
    """The fastest seconds by mode and tree."""
    import heal

    best: dict[str, dict[str, float]] = {mode: dict.fromkeys(trees, float("inf")) for mode in modes}
    children = {name: Child(python, row) for name, python in trees.items()}
    for _ in range(max(2, round(rounds * ROUNDS.get(row, 1))) if row != heal.COLD else max(2, rounds // 5)):
        for mode in modes:
            for name, child in children.items():
                best[mode][name] = min(best[mode][name], child.ask(mode))
    for child in children.values():
        child.close()
    return best


def told(row: str, best: dict[str, dict[str, float]]) -> list[list[str]]:
    """A line for each mode of ours: what it is a ratio to, each tree's ratio, and how the trees compare."""
    lines = []
    baseline = next(iter(best))
    for mode, taken in best.items():
        if mode == baseline and row != ENTER:
            continue
        first = next(iter(taken.values()))
        if row == ENTER:
            shown = [f"{1e3 * t:.2f} ms" for t in taken.values()]
        else:
            # The same program, which knows no tree: the fastest of all of them.
            plain = min(best[baseline].values())
            shown = [f"{t / plain:.2f}x" for t in taken.values()]
        against = [f"{t / first:.2f}" for t in list(taken.values())[1:]]
        size = "" if row == ENTER else f", {1e3 * min(best[baseline].values()):.1f} ms"
        lines.append([f"{row}{size}", mode, *shown, *against])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trees", nargs="*", metavar="NAME=PYTHON")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", help="rows with this in their name")
    parser.add_argument("--write", metavar="OUT.md", type=Path, help="the table, as Markdown")
    parser.add_argument("--serve", metavar="ROW", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    trees: dict[str, Any] = dict(given.split("=", 1) for given in args.trees if "=" in given)
    if len(trees) < 2 or len(trees) != len(args.trees):
        parser.error("at least two trees, each as NAME=PYTHON")
    names = list(trees)
    head = ["program", "mode", *names, *(f"{name} / {names[0]}" for name in names[1:])]
    table = [head, ["---"] * len(head)]
    print(" | ".join(head), flush=True)
    for row, modes in rows():
        if args.only and args.only not in row:
            continue
        for line in told(row, measure(trees, row, modes, args.rounds)):
            table.append(line)
            print(" | ".join(line), flush=True)
    if args.write:
        import torch

        text = "".join(f"| {' | '.join(line)} |\n" for line in table)
        command = " ".join(f"{n}={'pure:' if p.startswith('pure:') else ''}..." for n, p in trees.items())
        args.write.write_text(
            f"# Trees beside each other\n\n`python benchmarks/trees.py {command} --rounds {args.rounds}`, torch "
            f"{torch.__version__}.\nRatios are to plain PyTorch or, for programs that heal, to clones written by hand.\n\n{text}",
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
