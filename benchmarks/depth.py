"""Memory and time for each node of a deep graph: plain, watch(), heal() and install(), at several depths.

    python benchmarks/depth.py [--depths 50000 200000] [--json FILE]

Each figure is of a process of its own, which builds a chain of products, backs through it and frees it. Bytes a node that
stay the same from depth to depth say that memory is linear.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from typing import Any

POLICIES = "plain", "watch", "heal", "install"


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def chain(n: int) -> dict[str, float]:
    import torch

    x = torch.ones(1, requires_grad=True)
    for _ in range(200):  # what is made once is made
        (x * x).backward()
    x.grad = None
    before, began = resident(), time.perf_counter()
    h = x
    for _ in range(n):
        h = h * x
    built = resident() - before
    h.backward(retain_graph=True)
    backed = resident() - before
    del h
    return {"built": built / n, "backed": backed / n, "us": (time.perf_counter() - began) / n * 1e6}


def child(policy: str, depth: int) -> dict[str, float]:
    import gradmend

    if policy == "install":
        gradmend.install()
    context: Any = getattr(gradmend, policy)() if policy in ("watch", "heal") else nullcontext()
    with context:
        return chain(depth)


def measured(policy: str, depth: int) -> dict[str, float]:
    words = [sys.executable, __file__, "--child", policy, str(depth)]
    found: dict[str, float] = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    return found


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--depths", type=int, nargs="+", default=[50_000, 200_000])
    options.add_argument("--json", metavar="FILE")
    options.add_argument("--child", nargs=2, metavar=("POLICY", "DEPTH"), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child:
        print(json.dumps(child(given.child[0], int(given.child[1]))))
        return
    table = {p: {d: measured(p, d) for d in given.depths} for p in POLICIES}
    print(
        f"{'policy':8} {'nodes':>9} {'bytes a node: built':>20} {'backed through':>15} {'above plain':>12} {'us a node':>10}"
    )
    for policy, rows in table.items():
        for depth, row in rows.items():
            above = row["backed"] - table["plain"][depth]["backed"]
            print(
                f"{policy:8} {depth:9,} {row['built']:20.0f} {row['backed']:15.0f} {above:12.0f} {row['us']:10.1f}"
            )
    if given.json:
        with open(given.json, "w") as file:
            json.dump(table, file, indent=1)


if __name__ == "__main__":
    main()
