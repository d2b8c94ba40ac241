"""Makes docs/sparse-benchmarks.md and its picture from what benchmarks/sparse.py has measured.

python benchmarks/sparse_report.py build/sparse.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import fill
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
OURS = "gradmend"
DRAWN = ("graph16", "graph64", "graph128", "square", "linear10", "linear5", "linear1", "batched")

HEAD = """# Sparse training beside its peers

Made by `make bench-sparse` (torch {torch}, {threads} threads, a large copy moves {copy:.0f} GB/s), forward and backward unless
a row says otherwise. Absolute times are of one machine: read the ratios. Times are the best of rounds in which the
peers take turns in one process, each after a call to warm up; memory is the peak of one step in a fresh process, above the result and the
gradients that any way has to return. The traffic bound is the time to read each operand and write each result
once at the speed of that copy; gathered rows can't reach it.

Warm calls only are compared: what a first call costs, or one right after another library whose threads are still spinning, is
not in these numbers.

The tiny rows say what a call costs when there is nothing to do: each of ours passes through Python (a method, its checks, and one
or more calls of torch), where torch's own sparse tensors stay in C++. There we are behind, but for sums and sparse @ sparse.

`S + T`, `S * T`, `S[idx]` and `cat` are of two matrices of 20,000 rows and 400,000 entries each, at other places, forward. Ours merge the
places anew in each round; a training loop combines the same two patterns again and again, and finds the plan kept (the row "the
same patterns again"). torch's `cat` along rows only puts entries behind each other: before it is coalesced, it takes 0.9 of our time.

![Time of each peer, Gradmend = 1](images/sparse-benchmarks.svg)

| work | Gradmend ms | best peer | its ms | faster by | x traffic bound | MB above results | least of any peer |
|---|---:|---|---:|---:|---:|---:|---:|
"""


def megabytes(r: dict[str, Any], name: str) -> float | None:
    peak = r["memory"].get(name)
    return None if not peak else peak["above"] / 1e6


def number(x: float | None, digits: int = 1) -> str:
    return "" if x is None else f"{x:.{digits}f}"


def line(r: dict[str, Any]) -> str:
    tiny = r["row"].startswith("tiny")
    digits = 4 if tiny else 1
    ours, best = r["best_ms"][OURS], r["best_ms"][r["best_peer"]]
    peers = [m for n in r["best_ms"] if not n.startswith(OURS) and (m := megabytes(r, n)) is not None]
    cells = (
        r["name"],
        number(ours, digits),
        r["best_peer"],
        number(best, digits),
        f"{r['speedup']:.2f}x",
        "" if tiny else number(r["over_traffic"]),
        number(megabytes(r, OURS)),
        number(min(peers)) if peers else "",
    )
    return f"| {' | '.join(cells)} |"


def details(r: dict[str, Any]) -> list[str]:
    digits = 4 if r["row"].startswith("tiny") else 1
    lines = [
        f"### {r['name']}",
        "",
        f"{r['nnz']:,} entries; results and gradients are {r['results_mb']:.1f} MB.",
        "",
    ]
    lines += ["| | ms | median | MB above results |", "|---|---:|---:|---:|"]
    for name, ms in sorted(r["best_ms"].items(), key=lambda item: item[1]):
        shown = f"**{name}**" if name == OURS else name
        median = number(r["median_ms"][name], digits)
        lines.append(f"| {shown} | {number(ms, digits)} | {median} | {number(megabytes(r, name))} |")
    lines += [f"| {name} | | | {why.replace('|', ' ')} |" for name, why in r["skipped"].items()]
    return [*lines, ""]


def page(found: dict[str, Any]) -> str:
    about = found["about"]
    for r in found["rows"]:  # all against the same bound
        r["over_traffic"] = r["best_ms"][OURS] * 1e6 * about["copy_gb_s"] / r["least_bytes"]
    head = HEAD.format(torch=about["torch"].split("+")[0], threads=about["threads"], copy=about["copy_gb_s"])
    if note := about.get(
        "note"
    ):  # what a reader must know of these runs, written into the file by whoever made them
        head = head.replace("\n![", f"\n{fill(note, 116)}\n\n![", 1)
    rows = "\n".join(line(r) for r in found["rows"])
    parts = ["\n## Every peer\n", *[text for r in found["rows"] for text in details(r)]]
    return head + rows + "\n" + "\n".join(parts).rstrip("\n") + "\n"


def draw(found: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "gradmend"  # the same numbers make the same file
    matplotlib.rcParams["svg.fonttype"] = "none"  # letters, not their outlines
    import matplotlib.pyplot as plt

    rows = [r for r in found["rows"] if r["row"] in DRAWN]
    figure, axes = plt.subplots(2, 4, figsize=(13, 5.4))
    for axis in axes.flat:
        axis.set_visible(False)
    for axis, r in zip(axes.flat, rows, strict=False):
        axis.set_visible(True)
        names = sorted(r["best_ms"], key=lambda n: r["best_ms"][n])[:8]
        ratio = [r["best_ms"][n] / r["best_ms"][OURS] for n in names]
        axis.barh(range(len(names)), ratio, color=["#2a9d5c" if n == OURS else "#9aa0a6" for n in names])
        axis.set_yticks(range(len(names)), names, fontsize=7)
        axis.invert_yaxis()
        axis.set_xscale("log")
        axis.set_xlim(0.5, max(ratio) * 2.2)
        steps = (1, 2, 5, 10, 20) if max(ratio) < 20 else (1, 10, 100, 1000)
        ticks = [t for t in steps if t < max(ratio) * 2]
        axis.set_xticks(ticks, [f"{t}x" for t in ticks], fontsize=7)
        axis.minorticks_off()
        axis.axvline(1, color="#2a9d5c", linewidth=0.8)
        for i, (name, x) in enumerate(zip(names, ratio, strict=True)):
            axis.text(x * 1.06, i, f"{r['best_ms'][name]:.0f} ms", va="center", fontsize=6.5)
        axis.set_title(r["name"], fontsize=9)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    figure.suptitle("Forward and backward, time as a multiple of Gradmend's (shorter is better)", fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    found = json.loads(Path(sys.argv[1]).read_text())
    if len(sys.argv) == 3:  # only the picture, in any format
        draw(found, Path(sys.argv[2]))
        return
    (DOCS / "sparse-benchmarks.md").write_text(page(found))
    draw(found, DOCS / "images" / "sparse-benchmarks.svg")
    print(f"{len(found['rows'])} rows: docs/sparse-benchmarks.md")


if __name__ == "__main__":
    main()
