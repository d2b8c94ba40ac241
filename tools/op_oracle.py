"""PyTorch's own op database as oracle: every op overwritten in every way, judged by plain PyTorch, watch() and heal().

    python tools/op_oracle.py [--samples N] [--only OP ...] [--raw OUT.jsonl] [--table docs/op-oracle.md]

Ops run in child processes: an index overwritten behind PyTorch's back can kill one. A child that dies or takes too
long is named and replaced.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

DTYPES = (torch.float64, torch.complex128)
SECONDS = 300.0  # for one op and dtype
Job = tuple[str, torch.dtype]
Row = dict[str, Any]


def database() -> dict[str, Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return {op.formatted_name: op for op in op_db}


def jobs(names: Iterable[str] | None = None) -> tuple[list[Job], dict[str, list[str]]]:
    """What to run, and what can't be: reason -> ops."""
    ops = database()
    wanted = list(ops) if names is None else [n for n in ops if n in set(names)]
    found: list[Job] = []
    skipped: dict[str, list[str]] = {}
    for name in wanted:
        op = ops[name]
        can = op.supported_backward_dtypes("cpu") if op.supports_autograd else set()
        mine: list[Job] = [(name, d) for d in DTYPES if d in can]
        found += mine
        if not mine:
            reason = "has no derivative" if not op.supports_autograd else "has no derivative in these dtypes"
            skipped.setdefault(reason, []).append(name)
    return found, skipped


def run(todo: Sequence[Job], samples: int, seed: int = 0) -> Iterator[tuple[Job, list[Row], str]]:
    """Each job with its trials, or with the reason why it has none."""
    at = 0
    while at < len(todo):
        with _Child(todo[at:], samples, seed) as child:
            while at < len(todo):
                line = child.line(SECONDS)
                if line is None:
                    yield todo[at], [], "the process died or took too long"
                    at += 1
                    break
                answer = json.loads(line)
                yield todo[at], answer["trials"], answer["why"]
                at += 1


def _work(todo: Sequence[Job], samples: int, seed: int, out: Any) -> None:
    from op_trials import Skip, trials_of

    torch.set_num_threads(1)
    ops = database()
    for name, dtype in todo:
        trials: list[Row] = []
        why = ""
        try:
            trials = list(trials_of(ops[name], dtype, samples, seed))
        except Skip as reason:
            why = str(reason)
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(at.filename).name}:{at.lineno}"
            if os.path.join("torch", "testing", "_internal") in at.filename:
                why = f"PyTorch's own samples can't be made with this seed ({place})"
            else:
                why = f"error: {type(error).__name__} at {place}: {str(error).splitlines()[0] if str(error) else ''}"
        out.write(json.dumps({"trials": trials, "why": why}) + "\n")
        out.flush()


class _Child:
    def __init__(self, todo: Sequence[Job], samples: int, seed: int) -> None:
        reads, writes = os.pipe()
        database()  # imported once, before the fork
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(reads)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            try:
                with os.fdopen(writes, "w") as out:
                    _work(todo, samples, seed, out)
            finally:
                os._exit(0)
        os.close(writes)
        self._fd = reads
        self._buffer = b""

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *exc: object) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._fd)

    def line(self, seconds: float) -> str | None:
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._fd], [], [], seconds)
            chunk = os.read(self._fd, 1 << 16) if ready else b""
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()


# --------------------------------------------------------------------------- verdicts


def faults(trials: Iterable[Row]) -> list[Row]:
    """Trials that must not be: healed to another gradient, stopped without need, silent where backward is harmed."""
    return [t for t in trials if t["heal"] != "right" or (t["used"] and t["watch"] == "runs")]


def alarms(trials: Iterable[Row]) -> list[Row]:
    """watch() stopped, yet nothing that we wrote there changed what any node of backward computes."""
    return [t for t in trials if t["watch"] == "raises" and not t["used"]]


def unfelt(trials: Iterable[Row]) -> list[Row]:
    """watch() stopped: a node computes something else, which no gradient of this sample shows."""
    return [t for t in trials if t["watch"] == "raises" and t["used"] and not t["reads"]]


def recorded(files: Sequence[Path]) -> Iterator[tuple[Job, list[Row], str]]:
    """The same from files that --raw wrote; where two have an op, the later one counts."""
    found: dict[tuple[str, str], tuple[list[Row], str]] = {}
    for file in files:
        trials: list[Row] = []
        for line in file.read_text().splitlines():
            row = json.loads(line)
            if "way" in row:
                trials.append(row)
            else:
                found[row["op"], row["dtype"]] = trials, row["why"]
                trials = []
    for (name, dtype), (trials, why) in found.items():
        yield (name, getattr(torch, dtype)), trials, why


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=1, help="samples of each op and dtype")
    parser.add_argument("--seed", type=int, default=0, help="which samples")
    parser.add_argument("--only", nargs="*", help="names of ops")
    parser.add_argument("--raw", type=Path, help="write each trial here")
    parser.add_argument("--recorded", type=Path, nargs="*", help="run nothing: read what --raw wrote")
    parser.add_argument("--table", type=Path, help="write the table here instead of printing it")
    options = parser.parse_args()
    todo, skipped = jobs(options.only)
    rows: list[Row] = []
    raw = options.raw.open("w") if options.raw else None
    results = recorded(options.recorded) if options.recorded else run(todo, options.samples, options.seed)
    for (name, dtype), trials, why in results:
        rows += trials
        if why:
            skipped.setdefault(why, []).append(f"{name} ({str(dtype)[6:]})")
        for t in faults(trials):
            print(t, file=sys.stderr)
        if raw:
            raw.writelines(json.dumps(t) + "\n" for t in trials)
            raw.write(json.dumps({"op": name, "dtype": str(dtype)[6:], "why": why}) + "\n")
            raw.flush()
    from op_table import table

    text = table(rows, skipped, options.samples, len(database()))
    if options.table:
        options.table.write_text(text)
    else:
        print(text)
    return 1 if faults(rows) or any(why.startswith(("error", "the process")) for why in skipped) else 0


if __name__ == "__main__":
    sys.exit(main())
