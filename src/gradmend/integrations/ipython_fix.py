"""`%gradmend fix`: the cells that ran, as one program, and the edit that mends it."""

from __future__ import annotations

import ast
import json
import linecache
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradmend.integrations import ipython

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_SECONDS = 600
# Magics over Python code; others have another language below them.
_RUN_CODE = ("gradmend", "time", "timeit", "capture")


def fix(shell: InteractiveShell) -> None:
    source, places = program(list(shell.user_ns.get("In", ())))
    if not source:
        raise ipython.UsageError("no cell has run yet: there is nothing to fix")
    with tempfile.TemporaryDirectory(prefix="gradmend-notebook-") as folder:
        script, out = Path(folder, "notebook.py"), Path(folder, "out.json")
        script.write_text(source, encoding="utf-8")
        words = [sys.executable, "-m", "gradmend", "fix", "--report", str(out), str(script)]
        env = {**os.environ, "NO_COLOR": "1", "MPLBACKEND": "agg"}
        done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, env=env, check=False)
        if not out.exists():
            raise ipython.UsageError((done.stderr or done.stdout).strip().splitlines()[-1])
        _show(shell, json.loads(out.read_text(encoding="utf-8")), done.stdout, Joined(str(script), places))


def _show(shell: Any, report: dict[str, Any], text: str, joined: Joined) -> None:
    from gradmend.report.html import fragment

    if not report["conflicts"]:
        print(joined.told(text))
        return
    for number, cell in enumerate(shell.history_manager.input_hist_raw):  # the source, for excerpts
        name, lines = f"In [{number}]", [f"{line}\n" for line in cell.splitlines()]
        linecache.cache[name] = (len(cell), None, lines, name)
    ipython._display(joined.told(text), fragment(joined.told(report["conflicts"])))


Place = tuple[int, int]  # a cell and a line of it, as one sees them


class Joined:
    """The cells as one file: its lines go by the cells that they are of."""

    def __init__(self, script: str, places: Sequence[Place | None]) -> None:
        self.script = script
        self.places = places

    def at(self, line: int) -> Place | None:
        return self.places[line - 1] if 0 < line <= len(self.places) else None

    def told(self, part: Any) -> Any:
        """The same data with the cells' own numbers."""
        if isinstance(part, list | tuple):
            return [self.told(one) for one in part]
        if isinstance(part, str):
            return self._words(part)
        if not isinstance(part, dict):
            return part
        told = {key: self.told(value) for key, value in part.items()}
        place = self.at(part["line"]) if part.get("file") == self.script and part.get("line") else None
        if place is not None:
            told["file"], told["line"] = f"In [{place[0]}]", place[1]
            if part.get("end_line"):
                told["end_line"] = part["end_line"] - part["line"] + place[1]
        if "places" in part:  # of a history: file, line, function
            told["places"] = [self._row(row) for row in part["places"]]
        return told

    def _row(self, row: Sequence[Any]) -> list[Any]:
        place = self.at(row[1]) if row[0] == self.script else None
        return [f"In [{place[0]}]", place[1], *row[2:]] if place else self.told(list(row))

    def _words(self, text: str) -> str:
        def numbered(found: re.Match[str]) -> str:
            place = self.at(int(found["line"]))
            if place is None:
                return found[0]
            cell, line = place
            return f"line {line} of In [{cell}]" if found["word"] else f"In [{cell}]:{line}"

        def counted(found: re.Match[str]) -> str:
            """ "lines 3 and 7-9": each with its cell, or all with the one that they are of."""
            numbers = re.split(r"(\D+)", found["lines"])
            places = [self.at(int(number)) for number in numbers[::2]]
            cells = {place[0] for place in places if place is not None}
            if None in places:
                return found[0]
            for i, place in enumerate(places):
                assert place is not None
                ends = 2 * i + 1 >= len(numbers) or numbers[2 * i + 1] != "-"  # a block stands in one cell
                numbers[2 * i] = (
                    f"{place[1]} of In [{place[0]}]" if len(cells) > 1 and ends else str(place[1])
                )
            return f"lines {''.join(numbers)}" + (f" of In [{cells.pop()}]" if len(cells) == 1 else "")

        text = re.sub(r"\blines (?P<lines>\d+(?:(?:-|, | and )\d+)*)\b", counted, text)
        where = rf"(?:{re.escape(self.script)}:|(?P<word>\bline ))(?P<line>[0-9]+)\b"
        text = re.sub(where, numbered, text)
        names = {f"a{self.script}": "a/the cells", f"b{self.script}": "b/the cells", self.script: "the cells"}
        return str(ipython.renamed(text, names))


def program(cells: list[str]) -> tuple[str, list[Place | None]]:
    """The cells as a script, in the order in which they ran, and where each of its lines stands. A later run of an edited
    cell is there as it ran."""
    out: list[str] = []
    places: list[Place | None] = []
    for number, cell in enumerate(cells):
        lines = _python(cell)
        if any(line.strip() for line, _ in lines):
            out += [f"# In [{number}]", *(line for line, _ in lines), ""]
            places += [None, *((number, at) for _, at in lines), None]
    return "\n".join(out), places


def _python(cell: str, at: int = 1) -> list[tuple[str, int]]:
    """Without magics, with the number of each line: `In` holds magics as calls of get_ipython()."""
    if cell.startswith("%%"):
        return _python(cell.partition("\n")[2], at + 1)
    if cell.startswith(ipython.CELL_MAGIC):
        call = ast.parse(cell).body[0]
        assert isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)
        name, _, body = (str(ast.literal_eval(one)) for one in call.value.args)
        return _python(body, at + 1) if name in _RUN_CODE else []
    return [(line, n) for n, line in enumerate(cell.splitlines(), at) if "get_ipython()" not in line]
