"""Notebooks: the code cells as one program, and places in it as places in cells."""

from __future__ import annotations

import ast
import json
import re
import warnings
from dataclasses import dataclass

_MAGIC = ("%", "!", "?")
_BOUND = re.compile(r"(\s*[\w.,\s\[\]]+=)\s*[%!]")  # files = !ls
_MOST_MAGICS = 200
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
        lines += plain(body)
    return Notebook("\n".join(lines) + "\n", tuple(starts))


def plain(body: str) -> list[str]:
    """The cell as Python: magics, shell lines and questions become `pass`, so that every line keeps its number.

    Only where Python itself can't read a line is it taken for one of these: `%` and `?` have their meaning in Python too.
    """
    lines = body.split("\n")
    first = next((line.strip() for line in lines if line.strip()), "")
    if first.startswith("%%") and not first.startswith(_CELL_MAGIC_PYTHON):
        return ["#" + line for line in lines]
    for _ in range(min(len(lines), _MOST_MAGICS)):
        at = _unreadable(lines)
        if at is None or not _replace(lines, at):
            break
    return lines


def _unreadable(lines: list[str]) -> int | None:
    """The line that Python stumbles over, from 0."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse("\n".join(lines))
    except SyntaxError as error:
        return min(max(1, error.lineno or 1), len(lines)) - 1
    except (ValueError, RecursionError, MemoryError):
        return None
    return None


def _replace(lines: list[str], at: int) -> bool:
    """Take out the magic on this line, with the lines that a backslash joins to it. False where there is none."""
    line = lines[at]
    bare = line.lstrip()
    bound = _BOUND.match(line)
    if bound:
        lines[at] = bound[1] + " ..."
    elif bare.startswith(_MAGIC) or bare.rstrip().endswith("?"):
        lines[at] = line[: len(line) - len(bare)] + "pass"
    else:
        return False
    while line.rstrip().endswith("\\") and at + 1 < len(lines):
        at += 1
        line, lines[at] = lines[at], ""
    return True
