"""Notebooks: the code cells as one program, and places in it as places in cells."""

from __future__ import annotations

import ast
import json
import re
import warnings
from dataclasses import dataclass, replace
from typing import Any

from gradmend.check.alone import is_alone
from gradmend.check.findings import Finding, Place, StaticFix
from gradmend.check.syntax import misplaced

_MAGIC = ("%", "!", "?")
_BOUND = re.compile(r"([\w., \t\[\]]+=)[ \t]*[%!]")  # files = !ls
_MOST_MAGICS = 200
_TIMED = re.compile(r"(%(time|timeit|prun|memit|mprun|lprun)\s+(?:-\w+(?:\s*\d+)?\s+)*)(\S.*)")
_LINE = re.compile(r"(\S+ )?\bline (\d+)")  # "line 3" of this file, "model.py line 3" of another
# What makes the whole cell something other than Python.
_CELL_MAGIC_PYTHON = ("%%time", "%%timeit", "%%capture", "%%prun")


@dataclass(frozen=True, slots=True)
class Notebook:
    source: str
    cells: tuple[tuple[int, int], ...]  # (number of the cell, from 1; its first line in `source`)
    broken: tuple[SyntaxError, ...] = ()  # cells that are no Python, left out; lines are those of `source`

    def cell_of(self, line: int) -> tuple[int, int]:
        """The cell of a line, and the line in it."""
        number, start = 1, 1
        for cell, first in self.cells:
            if first > line:
                break
            number, start = cell, first
        return number, line - start + 1

    def text_of(self, cell: int | None) -> str:
        """A cell as Python."""
        starts = [first for _, first in self.cells]
        at = [number for number, _ in self.cells].index(cell or 0)
        end = starts[at + 1] - 1 if at + 1 < len(starts) else None
        return "\n".join(self.source.split("\n")[starts[at] - 1 : end])


def read(text: str) -> Notebook:
    """ValueError where it is no notebook."""
    lines: list[str] = []
    starts: list[tuple[int, int]] = []
    broken: list[SyntaxError] = []
    for number, cell in enumerate(cells_of(_content(text)), start=1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        body = plain(source_of(cell))
        if body[0][:1] in (" ", "\t") and _wrong(body) is not None and _wrong(["if 1:", *body]) is None:
            lines.append("if 1:")  # IPython takes off what a whole cell is indented by
        starts.append((number, len(lines) + 1))
        wrong = _wrong(body)
        if wrong is not None and lines[-1:] != ["if 1:"]:
            wrong.lineno = (wrong.lineno or 1) + len(lines)
            broken.append(wrong)
            body = ["#" + line for line in body]
        lines += body
    return Notebook("\n".join(lines) + "\n", tuple(starts), tuple(broken))


def _content(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is no Jupyter notebook") from None


def cells_of(content: Any) -> list[Any]:
    try:
        cells = content["cells"] if "cells" in content else content["worksheets"][0]["cells"]
    except (KeyError, TypeError, IndexError):
        raise ValueError("it is no Jupyter notebook") from None
    if not isinstance(cells, list):
        raise ValueError("it is no Jupyter notebook")
    return cells


def source_of(cell: dict[str, Any]) -> str:
    source = cell.get("source", cell.get("input", ""))
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def in_cell(finding: Finding, notebook: Notebook) -> Finding:
    """The finding with its places, its words and its fix told by cell."""
    where = _place_in_cell(finding.place, notebook)
    own = finding.place.file

    def line(found: re.Match[str]) -> str:
        before = found[1] or ""
        if "." in before:
            return found[0]  # of another file
        cell, number = notebook.cell_of(int(found[2]))
        return f"{before}line {number}" + (f" of cell {cell}" if cell != where.cell else "")

    return replace(
        finding,
        place=where,
        message=_LINE.sub(line, finding.message),
        related=tuple((m, _place_in_cell(p, notebook) if p.file == own else p) for m, p in finding.related),
        fix=_fix_in_cell(finding.fix, notebook, where.cell) if finding.fix is not None else None,
    )


def _place_in_cell(place: Place, notebook: Notebook) -> Place:
    cell, line = notebook.cell_of(place.line)
    return replace(place, line=line, end_line=place.end_line - place.line + line, cell=cell)


def _fix_in_cell(fix: StaticFix, notebook: Notebook, cell: int | None) -> StaticFix | None:
    """Cells run in any order: safe is only what is safe in the cell alone."""
    edits = []
    for edit in fix.edits:
        home, line = notebook.cell_of(edit.line)
        if home != cell:
            return None
        edits.append(replace(edit, line=line, end_line=edit.end_line - edit.line + line))
    name = edits[0].text.partition(" = ")[0]
    safe = fix.safe and is_alone(notebook.text_of(cell), name, edits[0].line, notebook.source)
    return replace(fix, edits=tuple(edits), safe=safe)


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
    wrong = _wrong(lines)
    return None if wrong is None else min(max(1, wrong.lineno or 1), len(lines)) - 1


def _wrong(lines: list[str]) -> SyntaxError | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return misplaced(ast.parse("\n".join(lines)))
    except SyntaxError as error:
        return error
    except (ValueError, RecursionError, MemoryError):
        return None


def _replace(lines: list[str], at: int) -> bool:
    """Take out the magic on this line, with the lines that a backslash joins to it. False where there is none."""
    line = lines[at]
    bare = line.lstrip()
    bound = _BOUND.match(line)
    if bound:
        lines[at] = bound[1] + " ..."
    elif timed := _TIMED.match(bare):
        lines[at] = line[: len(line) - len(bare)] + _run(timed)
    elif bare.startswith(_MAGIC) or bare.rstrip().endswith("?"):
        lines[at] = line[: len(line) - len(bare)] + "pass"
    else:
        return False
    while line.rstrip().endswith("\\") and at + 1 < len(lines):
        at += 1
        line, lines[at] = lines[at], ""
    return True


def _run(timed: re.Match[str]) -> str:
    """`%time y = f(x)` runs its statement; the columns stay. %timeit runs it in a scope of its own: what it binds is gone."""
    try:
        body = ast.parse(timed[3])
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "pass"
    binds = any(isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) for n in ast.walk(body))
    simple = all(isinstance(s, (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)) for s in body.body)
    if not simple or (binds and timed[2] != "time"):
        return "pass"
    return "if 1:".ljust(len(timed[1])) + timed[3]
