"""Makes docs/versions.md from what `make test-matrix` left: build/torch-2.15.0-python3.xml and its like."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "docs" / "versions.md"
HEAD = """# Releases of torch

Every test of `make test` and `make test-slow`, run with each release by `make test-matrix`, which writes this page. `make test-torch TORCH=2.15.0`
runs one. The registry's builds are linked against CUDA; the tests run on the CPU, over empty CUDA libraries
(`tools/torch_env.py`).

| torch | Python | passed | failed | skipped | minutes |
|---|---|---|---|---|---|
"""
FLOOR = """
## Why not before 2.13

2.10 to 2.12 have all that is needed, and every canary holds on 2.10 (`gradmend doctor`); their whole suites have not been run, so
the package does not name them. Up to 2.9 it can't work: which of a node's saved tensors backward asks for is found by
`SavedTensor.data`, which torch has since 2.10. Without it the slots that a backward never reads can't be told from
those that it reads, and `watch()` would raise on programs that are right, such as BatchNorm in training.

## A release that is not in this table

Before `watch()` or `heal()` is first used, a child process tries each way in which a gradient can go wrong in silence
(`gradmend doctor` shows them), once for each build of torch. If one of them does not hold, `heal()` stops with a sentence that
names it, and `watch()` warns of what it can't see. If your program does nothing of that kind, `GRADMEND_TRUST=NAME` lets
`heal()` run. Which slots a backward never reads is measured for the releases above alone: on another one, a write that is
harmless for that reason is told as if it were not.
"""


def main() -> None:
    rows, reasons = [], Counter()
    suites = [(Path(name).stem.split("-")[1], ET.parse(name).getroot()[0]) for name in sys.argv[1:]]
    for release, suite in sorted(
        suites, key=lambda one: (_numbers(one[0]), _numbers(one[1].get("name", "0")))
    ):
        total, failed, skipped = (int(suite.get(k, 0)) for k in ("tests", "failures", "skipped"))
        failed += int(suite.get("errors", 0))
        minutes = float(suite.get("time", 0)) / 60
        rows.append(
            f"| {release} | {suite.get('name')} | {total - failed - skipped:,} | {failed} | {skipped} | {minutes:.0f} |"
        )
        for one in suite.iter("skipped"):
            reasons[_plain(one.get("message", "")), f"{release} on {_short(suite)}"] += 1
    OUT.write_text(HEAD + "\n".join(rows) + "\n" + _skipped(reasons) + FLOOR)
    print("\n".join(rows))


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _short(suite: ET.Element) -> str:
    return ".".join(suite.get("name", "").split(".")[:2])


def _plain(message: str) -> str:
    return " ".join(message.split()).removeprefix("Skipped: ")[:150]


def _skipped(reasons: Counter[tuple[str, str]]) -> str:
    lines = ["", "## Skipped, and why", "", "| reason | tests, by release |", "|---|---|"]
    for reason in sorted({reason for reason, _ in reasons}):
        counts = [f"{release}: {n}" for (why, release), n in sorted(reasons.items()) if why == reason]
        lines.append(f"| {reason} | {', '.join(counts)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
