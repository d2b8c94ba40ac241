"""Makes the part of src/gradmend/capture/graph/reads.json that the installed torch speaks of: the slots its backward does not read.

    python tools/make_reads.py [--check] [--only OP ...] [--raw OUT.jsonl]

The table holds one release whole, the base, and of each other release only the nodes that differ.

Each op of PyTorch's own op database runs in a forked process with a time limit, since an index out of range can
kill one. A slot is listed only when no observation contradicts it and at least ENOUGH support it.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import re
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from reads_extra import PROGRAMS
from reads_observe import observe, variants

from gradmend.capture.graph.reads import table_of
from gradmend.compat.releases import release
from gradmend.story.knowledge._entries import at_node

OUT = Path(__file__).parents[1] / "src/gradmend/capture/graph/reads.json"
ENOUGH = 6  # observations in support, each of several corruptions
SAMPLES = 30  # per op and dtype, drawn at random: a stride could miss one value of a flag
SECONDS = 120  # of processor time, so that a busy machine draws the same conclusions
PATIENCE = 10 * SECONDS  # on the clock, for one that sleeps

Seen = dict[str, Any]
Condition = dict[str, Any]

# Nodes that no op sample makes: those of devices that this machine may lack, and BatchNorm's second backward. In
# training they work from the batch statistics that forward saved; the GPU's second backward is always in training.
BY_SOURCE: dict[str, dict[str, Any]] = {
    "CudnnBatchNormBackward0": {"running_mean": [{"training": True}], "running_var": [{"training": True}]},
    "MiopenBatchNormBackward0": {"running_mean": [{"training": True}], "running_var": [{"training": True}]},
    "NativeBatchNormBackwardBackward0": {"running_mean": [{"train": True}], "running_var": [{"train": True}]},
    "CudnnBatchNormBackwardBackward0": {"running_mean": "always", "running_var": "always"},
    "MiopenBatchNormBackwardBackward0": {"running_mean": "always", "running_var": "always"},
}


# By which of its plain values a node's backward branches (FunctionsManual.cpp, and the kernels it calls). Under which
# of their values a slot goes unread is measured; other values that part the samples do so by chance.
DECIDES = {
    "AngleBackward0": ("complex_0",),
    "CdistBackward0": ("p",),
    "DivBackward2": ("rounding_mode",),
    "GridSampler2DBackward0": ("interpolation_mode",),
    "GridSampler3DBackward0": ("interpolation_mode",),
    "IndexReduceBackward0": ("reduce",),
    "LinalgSlogdetBackward0": ("complex_0",),
    "LinalgVectorNormBackward0": ("ord",),
    "RreluWithNoiseBackward0": ("training", "lower", "upper"),
    "ScatterReduceBackward0": ("reduce",),
    "SgnBackward0": ("complex_0",),
}


def of_op(op: Any) -> Iterator[Seen]:
    for dtype in (torch.float64, torch.complex128, torch.float32):
        if dtype not in op.supported_backward_dtypes("cpu"):
            continue
        for sample in _samples(op, dtype):
            for given, args, kwargs, leaves in variants(sample.input, sample.args, sample.kwargs):
                if not leaves:
                    continue

                def call(given: Any = given, args: Any = args, kwargs: Any = kwargs, s: Any = sample) -> Any:
                    return s.output_process_fn_grad(op(given, *args, **kwargs))

                try:
                    yield from observe(call, leaves)
                except (RuntimeError, TypeError, ValueError, IndexError):
                    continue  # this sample has no gradient in this variant


def _samples(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    """As many as there are, up to SAMPLES; of an op with only a few, other values of the same."""
    for seed in range(ENOUGH // 2):
        torch.manual_seed(seed)
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=True))
        random.Random(seed).shuffle(samples)
        yield from samples[:SAMPLES]
        if len(samples) >= ENOUGH // 2:
            return


def of_program(program: Callable[[], tuple[Callable[[], Any], list[torch.Tensor]]]) -> Iterator[Seen]:
    for seed in range(ENOUGH):
        torch.manual_seed(seed)
        fn, leaves = program()
        yield from observe(fn, leaves)


def forked(work: Callable[[], Iterator[Seen]]) -> tuple[list[Seen], str]:
    """What work() yields, from a process of its own, as far as it came; and how it ended."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            with os.fdopen(writer, "w") as out:
                for seen in work():
                    out.write(json.dumps(seen) + "\n")
                    out.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writer)
    data, deadline = b"", time.monotonic() + PATIENCE
    ended = "done"
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            os.kill(pid, signal.SIGKILL)
            ended = "time limit"
            break
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            break
        data += chunk
    os.close(reader)
    status = os.waitpid(pid, 0)[1]
    if ended == "done" and status:
        ended = f"killed by signal {status & 127}" if status & 127 else "an exception"
        if status & 127 in (signal.SIGXCPU, signal.SIGKILL):
            ended = "time limit"
    whole = data[: data.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines()], ended


def conclude(observations: list[Seen]) -> dict[str, dict[str, Any]]:
    """The slots not read, with the conditions under which they are not."""
    groups: dict[tuple[str, str], list[Seen]] = collections.defaultdict(list)
    for seen in observations:
        groups[seen["node"], seen["slot"]].append(seen)
    table: dict[str, dict[str, Any]] = {}
    for (node, slot), group in sorted(groups.items()):
        when = [c for c in unread_when(node, group) if not contradicts(node, slot, c, group)]
        if when:
            table.setdefault(node, {})[slot] = "always" if when == [{}] else when
    return table


def unread_when(node: str, group: list[Seen]) -> list[Condition]:
    names = DECIDES.get(node, ())
    # A gradient of zeros shows nothing, unless zeros are all that a branch known to us has to say.
    telling = group if names else [s for s in group if not s["zero"]]
    if not telling:
        return []
    if not names and not any(s["read"] for s in telling):
        return [_and_double({}, telling)] if len(telling) >= ENOUGH else []
    # A gradient that nobody asks for, BatchNorm's flag, or what decides by the source.
    chances: list[Condition] = [
        {n: False} for n in sorted({f for s in group for f in s["features"]}) if n.startswith("needs_")
    ]
    if group[0]["slot"].startswith("running_"):
        chances.append({"training": True})
    if names:
        met = {tuple(s["features"].get(n, "?") for n in names) for s in group}
        chances += [dict(zip(names, values, strict=True)) for values in sorted(met, key=repr)]
    chances += _missing(group)
    found: list[Condition] = []
    for chance in chances:
        part = [s for s in telling if _holds(chance, s)]
        if set(chance) != set(names):
            part = [s for s in part if not s["zero"]]
        if len(part) >= ENOUGH and not any(s["read"] for s in part):
            found.append(_and_double(chance, part))
    return found


def contradicts(node: str, slot: str, condition: Condition, group: list[Seen]) -> bool:
    """Does the formula itself leave room for a read that no sample showed?

    Trusted are formulas that give the slot to a hand-written ..._backward(), which may take it for its shape.
    A formula that computes with the slot in plain sight reads it, if only for some values; one that has several
    output gradients must have been seen with each alone and with all; the backward of a backward was seen too
    seldom; and oneDNN chooses its kernels by the processor, so that one machine shows nothing about another.
    """
    entry = at_node(node)
    if entry is None or "backward" in entry.op or entry.op.startswith("mkldnn"):
        return True
    inputs = [name for name in entry.tensors if any(name in f.inputs for f in entry.formulas)]
    idle = {inputs[int(k[6:])] for k, v in condition.items() if k.startswith("needs_") and not v}
    for formula in entry.readers(slot):
        if set(formula.inputs) <= idle:
            continue  # nobody asks for this gradient
        several = set(re.findall(r"\bgrads\[\d+\]|\bgrad_(?!input_mask)\w+", formula.text))
        missing = sum(k.startswith("arrives_") for k in condition)
        if several and not _all_arrived(group, condition, len(several) - missing):
            return True
        rest = re.sub(
            rf"\b(?:expand_as|reshape_as)\({slot}\)|\bat::{slot}\(|\b{slot}\.(?:dim|sym_size)\(",
            "(",
            formula.text,
        )
        rest = re.sub(r"\b\w*_backward(?:_symint)?\(.*\)", "", rest)
        if re.search(rf"\b{slot}\b", rest):
            return True
    return False


def _holds(condition: Condition, seen: Seen) -> bool:
    arrived = {f"arrives_{i}": came for i, came in enumerate(seen["arrived"])}
    return condition.items() <= {**seen["features"], **arrived}.items()


def _missing(group: list[Seen]) -> list[Condition]:
    """For each set of outputs that were seen to get no gradient: that they get none."""
    patterns = {tuple(s["arrived"]) for s in group}
    ever = [i for i in range(max(map(len, patterns))) if any(i < len(p) and p[i] for p in patterns)]
    found = {tuple(i for i in ever if not p[i]) for p in patterns if any(p)}
    # The fewer are missing, the more the condition covers.
    return [
        {f"arrives_{i}": False for i in outs} for outs in sorted(found, key=lambda o: (len(o), o)) if outs
    ]


def _all_arrived(group: list[Seen], condition: Condition, outputs: int) -> bool:
    """Was the node seen, under this condition, with a gradient for each of its outputs alone, and for all of them?"""
    plain = {k: v for k, v in condition.items() if k != "grad_mode"}
    met = [tuple(s["arrived"]) for s in group if _holds(plain, s)]
    ever = {i for pattern in met for i, came in enumerate(pattern) if came}
    patterns = {frozenset(i for i, came in enumerate(p) if came) for p in met}
    return len(ever) == outputs and {frozenset(ever), *(frozenset({i}) for i in ever)} <= patterns


def _and_double(condition: Condition, part: list[Seen]) -> Condition:
    """Unread by a backward that is itself recorded too? Else the condition holds for plain backward only."""
    known = [s["read_twice"] for s in part if s["read_twice"] is not None]
    if len(known) >= ENOUGH and not any(known):
        return condition
    return {**condition, "grad_mode": False}


def enter(page: dict[str, Any], name: str, unread: dict[str, dict[str, Any]]) -> None:
    """Puts what was measured on one release into the page."""
    tables = {known: table_of(page, known) for known in (page["base"], *page["differs"])}
    tables[name] = unread
    base = tables[page["base"]]
    page["unread"] = base
    page["differs"] = {
        other: {
            node: table.get(node, {}) for node in sorted({*base, *table}) if base.get(node) != table.get(node)
        }
        for other, table in sorted(tables.items(), key=lambda item: [int(n) for n in item[0].split(".")])
        if other != page["base"]
    }


def collect(only: list[str] | None) -> list[Seen]:
    """Every observation of every job, or of these alone."""
    from torch.testing._internal.common_methods_invocations import op_db

    jobs: list[tuple[str, Callable[[], Iterator[Seen]]]] = [
        (op.formatted_name, lambda op=op: of_op(op)) for op in op_db if op.supports_autograd
    ]
    jobs += [(p.__name__, lambda p=p: of_program(p)) for p in PROGRAMS]
    everything: list[Seen] = []
    for name, work in jobs:
        if only and name not in only:
            continue
        seen, ended = forked(work)
        everything += seen
        if ended != "done":
            print(f"{name}: {ended} after {len(seen)} observations", file=sys.stderr)
    return everything


def _load(path: Path) -> list[Seen]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="compare with the committed table, write nothing"
    )
    parser.add_argument("--only", nargs="*", help="these ops alone; prints their table")
    parser.add_argument("--raw", type=Path, help="keep every observation here")
    parser.add_argument("--from", dest="known", type=Path, help="conclude from observations kept earlier")
    options = parser.parse_args()
    torch.set_num_threads(1)
    everything = collect(options.only) if not options.known else _load(options.known)
    if options.raw:
        options.raw.write_text("".join(json.dumps(s) + "\n" for s in everything))
    unread = conclude(everything)
    if options.only:
        print(json.dumps(unread, indent=1))
        return 0
    for node, slots in BY_SOURCE.items():
        unread.setdefault(node, {}).update(slots)
    page = json.loads(OUT.read_text())
    enter(page, release(torch.__version__), dict(sorted(unread.items())))
    text = json.dumps(page, indent=1) + "\n"
    if options.check:
        same = OUT.read_text() == text
        print("fresh" if same else "stale: run tools/make_reads.py")
        return 0 if same else 1
    OUT.write_text(text)
    print(
        f"{sum(map(len, unread.values()))} unread slots of {len(unread)} nodes, from {len(everything)} observations"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
