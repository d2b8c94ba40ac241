"""The committed table of the op oracle: counts, and every op that has no trial with its reason."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

Row = dict[str, Any]

# Why watch() stops where nothing moves. What is not here is still to be looked into.
_TWICE = "a derivative of a derivative: seen too seldom for `capture/graph/reads.json` to trust it"
REASONS = {
    "IndexAddBackward0.index": "read: the gradient is gathered by it, and multiplied by `alpha=0` in this sample",
    "LinalgDetBackward0.result": "not read for matrices of 1 x 1, which the node does not tell",
    "LinalgLstsqBackward0.solution": "read for the residuals' gradient, which is asked for; they are empty in this sample",
    "NativeDropoutBackwardBackward0.grad_output": _TWICE,
    "PdistBackward0.result": "not read for `p=0` and `p=1`, of which the database has too few samples",
    "PowBackward1.result": "read: its factor, the logarithm of a negative base, is NaN in this sample anyway",
    "RreluWithNoiseBackward0.self": "not read in training with these bounds in 4 observations; `capture/graph/reads.json` asks for 6",
    "SoftmaxBackwardDataBackward0.grad_output": _TWICE,
}


def table(rows: list[Row], skipped: dict[str, list[str]], samples: int, known: int) -> str:
    from op_oracle import alarms, unfelt

    ops = {r["op"] for r in rows}
    lines = [
        "# PyTorch's op database, overwritten",
        "",
        "Made by `python tools/op_oracle.py --table docs/op-oracle.md`; do not edit.",
        "",
        f"torch {torch.__version__.partition('+')[0]}, float64 and complex128. Of {known} entries of the database {len(ops)} have trials: each op runs on",
        "non-leaf inputs, then one tensor of its inputs or outputs (or all of them) is overwritten in place, whole, in a",
        "slice, through a view, or through `.data`, then backward runs. Up to"
        f" {samples} samples of each op; {len(rows)} trials.",
        "",
        "| way | trials | plain PyTorch raises | of these needlessly | plain silently wrong | `watch()` raises | `heal()` right |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for way in ("whole", "slice", "view", "data"):
        mine = [r for r in rows if r["way"] == way]
        lines.append(_line(way, mine))
    lines.append(_line("**all**", rows))
    silent = sum(r["used"] and r["watch"] == "runs" for r in rows)
    stops = sum(r["heal"] == "stops" for r in rows)
    wrong = sum(r["heal"] == "wrong" for r in rows)
    lines += [
        "",
        f"`watch()` silent where backward reads what changed: {silent}. `heal()` wrong: {wrong}, stopped: {stops}.",
        "",
    ]
    hidden, quiet = unfelt(rows), alarms(rows)
    lines += [
        "## Stopped although no gradient changed",
        "",
        f"*Read without effect*, {len(hidden)} trials: some node of backward computes something else with the overwritten value,",
        "and a factor of zero further down hides it from the gradients of this sample. `watch()` is right to stop.",
        "",
        *_by_note(hidden),
        "",
        f"*Nothing moved*, {len(quiet)} trials: whatever was written there, NaN among it, every node of backward handed on the",
        "same. Each with its reason:",
        "",
        *_by_note(quiet),
    ]
    lines += ["", "## Without a trial", ""]
    for why in sorted(skipped):
        names = ", ".join(f"`{n}`" for n in sorted(skipped[why]))
        lines += [f"**{why}** ({len(skipped[why])}): {names}", ""]
    return "\n".join(lines).rstrip() + "\n"


def _by_note(rows: list[Row]) -> list[str]:
    found = Counter(r["note"] for r in rows)
    return [
        f"- `{note}` ({n})" + (f": {REASONS[note]}" if note in REASONS else "")
        for note, n in sorted(found.items())
    ] or ["- none"]


def _line(name: str, rows: list[Row]) -> str:
    raises = [r for r in rows if r["plain"] == "raises"]
    counts = (
        len(rows),
        len(raises),
        sum(r["watch"] == "runs" for r in raises),
        sum(r["plain"] == "silently wrong" for r in rows),
        sum(r["watch"] == "raises" for r in rows),
        sum(r["heal"] == "right" for r in rows),
    )
    return f"| {name} | " + " | ".join(str(c) for c in counts) + " |"
