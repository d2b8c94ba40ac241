"""Notebooks: the code cells as one program, and places in it as places in cells."""

from __future__ import annotations

import json
from dataclasses import dataclass

_MAGIC = ("%", "!", "?")
# What makes the whole cell something other than Python.
_CELL_MAGIC_PYTHON = ("%%time", "%%timeit", "%%capture", "%%prun")


@dataclass(frozen=True, slots=True)
class Notebook:
    source: str
    cells: tuple[tuple[int, int], ...]  # (number of the cell, from 1; its first line in `source`)

    def cell_of(self, line: int) -> tuple[int, int]:
        """The cell of a line, and the line in it."""
        number, start = 1, 1
        for cell, first in self.cells:
            if first > line:
                break
            number, start = cell, first
        return number, line - start + 1


def read(text: str) -> Notebook:
    """ValueError where it is no notebook."""
    try:
        content = json.loads(text)
        cells = content["cells"] if "cells" in content else content["worksheets"][0]["cells"]
    except (ValueError, KeyError, TypeError, IndexError):
        raise ValueError("it is no Jupyter notebook") from None
    if not isinstance(cells, list):
        raise ValueError("it is no Jupyter notebook")
    lines: list[str] = []
    starts: list[tuple[int, int]] = []
    for number, cell in enumerate(cells, start=1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", cell.get("input", ""))
        body = "".join(map(str, source)) if isinstance(source, list) else str(source)
        starts.append((number, len(lines) + 1))
        lines += _plain(body)
    return Notebook("\n".join(lines) + "\n", tuple(starts))


def _plain(body: str) -> list[str]:
    """Magics and shell lines become comments or `pass`, so that every line keeps its number."""
    lines = body.split("\n")
    first = next((line.strip() for line in lines if line.strip()), "")
    if first.startswith("%%") and not first.startswith(_CELL_MAGIC_PYTHON):
        return ["#" + line for line in lines]
    made = []
    for line in lines:
        bare = line.lstrip()
        if bare.startswith(_MAGIC) or bare.rstrip().endswith("?"):
            made.append(line[: len(line) - len(bare)] + "pass  #" + bare[:0])
        else:
            made.append(line)
    return made
