"""The committed table of the op oracle: counts, and every op that has no trial with its reason."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

Row = dict[str, Any]


def table(rows: list[Row], skipped: dict[str, list[str]], samples: int, known: int) -> str:
    from op_oracle import alarms

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
    silent = sum(r["reads"] and r["watch"] == "runs" for r in rows)
    stops = sum(r["heal"] == "stops" for r in rows)
    wrong = sum(r["heal"] == "wrong" for r in rows)
    lines += [
        "",
        f"`watch()` silent where a gradient would change: {silent}. `heal()` wrong: {wrong}, stopped: {stops}.",
        "",
    ]
    quiet = alarms(rows)
    lines += [
        "## Stopped although no gradient changed",
        "",
        f"{len(quiet)} trials, each a false alarm of `watch()` for its sample: backward was given other values, NaN among",
        "them, and no gradient moved. The slot is not read under a condition that `capture/reads.json` does not know (a",
        "gradient that is not asked for, a mode), or indices only changed places. By node and slot:",
        "",
    ]
    lines += [f"- `{note}` ({n})" for note, n in sorted(Counter(r["note"] for r in quiet).items())] or [
        "- none"
    ]
    lines += ["", "## Without a trial", ""]
    for why in sorted(skipped):
        names = ", ".join(f"`{n}`" for n in sorted(skipped[why]))
        lines += [f"**{why}** ({len(skipped[why])}): {names}", ""]
    return "\n".join(lines).rstrip() + "\n"


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
