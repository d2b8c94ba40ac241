"""Fixes put into files: Python files as they are, notebooks cell by cell, all else in them untouched."""

from __future__ import annotations

import ast
import difflib
import io
import json
import os
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from gradmend.check import notebooks
from gradmend.check.files import fingerprint
from gradmend.check.findings import Finding, printable
from gradmend.check.formats.text import shown
from gradmend.check.rewrite import fixed, lines_of
from gradmend.rewriting import Changed, Rewrite

_CHANGED = "it changed while it was checked; left as it is, check it again"


class Unfit(Exception):
    """Why a file can't be rewritten."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A file with its fixes in it, not yet written."""

    file: str
    text: str
    encoding: str
    count: int  # fixes in it
    diff: str
    before: bytes  # what the file held when it was looked at

    def write(self) -> None:
        try:
            Rewrite(self.file, self.before, self.text.encode(self.encoding)).put()
        except Changed:
            raise Unfit(_CHANGED) from None
        except OSError as error:
            raise Unfit(f"can't write it: {error.strerror or error}") from None


def rewritten(
    file: str, findings: list[Finding], *, unsafe: bool, raw: bytes | None = None, seen: str | None = None
) -> Rewritten:
    """Raises Unfit. `raw` is what the file holds, where that did not come from the disk; `seen` the print of what was checked."""
    try:
        if raw is None:
            with open(file, "rb") as handle:
                raw = handle.read()
        if seen is not None and fingerprint(raw) != seen:
            raise Unfit(_CHANGED)
        if file.endswith(".ipynb"):
            return _notebook(file, raw, findings, unsafe)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        before = raw.decode(encoding)
        if before.encode(encoding) != raw:
            raise Unfit(f"can't rewrite it: {encoding} would change other lines too")
    except (OSError, SyntaxError, ValueError) as error:
        raise Unfit(f"can't rewrite it: {error}") from None
    after, count = fixed(before, findings, unsafe=unsafe)
    if count:
        _compiles(after, file)
    return Rewritten(file, after, encoding, count, diff(file, before, after), raw)


def _notebook(file: str, raw: bytes, findings: list[Finding], unsafe: bool) -> Rewritten:
    text = raw.decode("utf-8")
    content = json.loads(text)
    dump = json.dumps if unsafe else _layout(content, text)  # what is only shown needs no layout
    count, changes = 0, ""
    cells = notebooks.cells_of(content)
    for number in sorted({f.place.cell for f in findings if f.place.cell is not None}):
        cell = cells[number - 1]
        before = notebooks.source_of(cell)
        after, done = fixed(before, [f for f in findings if f.place.cell == number], unsafe=unsafe)
        count += done
        changes += diff(f"{file}:cell {number}", before, after)
        key = "source" if "source" in cell else "input"
        cell[key] = after.splitlines(keepends=True) if isinstance(cell[key], list) else after
    made = dump(content)
    if count:
        _compiles(notebooks.read(made).source, file, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return Rewritten(file, made, "utf-8", count, changes, raw)


def _layout(content: Any, text: str) -> Callable[[Any], str]:
    """How its JSON is written, so that writing it again changes nothing but the cells."""
    end = text[len(text.rstrip()) :]

    for indent in (1, 2, 4, "\t", None):
        for plain in (False, True):
            dump = partial(json.dumps, indent=indent, ensure_ascii=plain)
            if dump(content) + end == text:
                return lambda new: dump(new) + end
    raise Unfit(
        "can't rewrite it: its JSON would be laid out anew; change the cells by hand, `--diff` shows how"
    )


def _compiles(text: str, file: str, flags: int = 0) -> None:
    try:
        compile(text, file, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError):
        raise Unfit("a rewrite would break its syntax; left as it is") from None


def diff(file: str, before: str, after: str) -> str:
    name = printable(shown(file).replace(os.sep, "/").lstrip("/"))
    lines = difflib.unified_diff(lines_of(before), lines_of(after), f"a/{name}", f"b/{name}")
    # A cell has no end of line at its end.
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)
