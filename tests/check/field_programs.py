"""Programs of data/field: broken ones with the lines to be told marked `# <-`, each with its mended twin as a small diff.

`=== name` begins a program (`=== name silent` where PyTorch says nothing, `=== name safe` where nothing is wrong); the lines after
`--- safe` take `-` lines out and put `+` lines in at the place of the last line taken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FIELD = Path(__file__).parent / "data" / "field"


@dataclass(frozen=True)
class Program:
    name: str
    source: str
    told: tuple[int, ...]  # one of these lines must be told; none: it is safe
    silent: bool = False


def programs() -> dict[str, Program]:
    found: dict[str, Program] = {}
    for file in sorted(FIELD.glob("*.txt")):
        for part in re.split(r"^=== ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            head, _, body = part.partition("\n")
            name, *words = head.split()
            source, _, changes = body.partition("--- safe\n")
            assert name not in found, name
            found[name] = Program(name, *_labels(source), "silent" in words)
            assert bool(found[name].told) != ("safe" in words), name
            if changes:
                twin = _changed(found[name].source, changes.splitlines())
                found[f"{name}-mended"] = Program(f"{name}-mended", twin, ())
    return found


def _labels(source: str) -> tuple[str, tuple[int, ...]]:
    lines = source.splitlines()
    told = tuple(n for n, line in enumerate(lines, 1) if line.endswith("# <-"))
    return "\n".join(line.removesuffix("# <-").rstrip() for line in lines) + "\n", told


def _changed(source: str, changes: list[str]) -> str:
    lines: list[str | None] = list(source.splitlines())
    put: dict[int, list[str]] = {}
    at = 0
    for change in changes:
        sign, text = change[:1], change[1:].rstrip()
        if sign == "-":
            at = next(i for i, line in enumerate(lines) if line is not None and line.rstrip() == text)
            lines[at] = None
        elif sign == "+":
            put.setdefault(at, []).append(text)
    made = []
    for i, line in enumerate(lines):
        made += put.get(i, []) + ([line] if line is not None else [])
    return "\n".join(made) + "\n"
