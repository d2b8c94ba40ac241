"""What a check says: Findings, and the places and edits in them."""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning"]
UNCHECKED = "GM000"  # no rule of its own: something could not be read or followed


def printable(name: str) -> str:
    """A file's name on one line of a terminal: what would move the cursor or end the line is written out."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in name)


@dataclass(frozen=True, slots=True)
class Place:
    """A piece of source. Lines count from 1, columns too, as editors show them; the end is exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    cell: int | None = None  # of a notebook, from 1; lines are those of the cell then

    def holds(self, other: Place) -> bool:
        """Is the other a part of it?"""
        start, end = (self.line, self.column), (self.end_line, self.end_column)
        theirs, last = (other.line, other.column), (other.end_line, other.end_column)
        return self.file == other.file and start <= theirs and last <= end and self != other

    def as_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "end_line": self.end_line,
            "end_column": self.end_column,
        }
        if self.cell is not None:
            said["cell"] = self.cell
        return said


def place_of(file: str, node: ast.AST) -> Place:
    """Where a piece of syntax stands."""
    line = getattr(node, "lineno", 1)
    column = getattr(node, "col_offset", 0) + 1
    end_line = getattr(node, "end_lineno", None) or line
    return Place(file, line, column, end_line, (getattr(node, "end_col_offset", None) or column) + 1)


@dataclass(frozen=True, slots=True)
class TextEdit:
    """Replace the text from one position to another; both at once make an insertion."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


@dataclass(frozen=True, slots=True)
class StaticFix:
    """A rewrite. `safe`: it keeps the program's meaning whatever the types are."""

    message: str
    safe: bool
    edits: tuple[TextEdit, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "message": self.message,
            "applicability": "safe" if self.safe else "unsafe",
            "edits": [
                {
                    "line": e.line,
                    "column": e.column,
                    "end_line": e.end_line,
                    "end_column": e.end_column,
                    "text": e.text,
                }
                for e in self.edits
            ],
        }


@dataclass(frozen=True, slots=True)
class Call:
    """The call in the checked file that led to another file."""

    function: str
    place: Place


@dataclass(frozen=True, slots=True)
class Finding:
    place: Place
    rule: str
    severity: Severity
    message: str
    help: str = ""
    related: tuple[tuple[str, Place], ...] = ()  # what each place is: "relu keeps its result here"
    fix: StaticFix | None = None
    via: Call | None = None  # it lies in an imported file: where the checked one calls into that
    stands_for: Place | None = None  # told at the call, for those who did not ask for the file where it lies
    tried: str = ""  # "Class.name": it rests on the grad mode in which this was tried: those who call it may set another

    @property
    def order(self) -> tuple[str, int, int, int, str]:
        return self.place.file, self.place.cell or 0, self.place.line, self.place.column, self.rule

    def told_in(self, asked: Collection[str]) -> bool:
        """Whether it is for those who asked for these files."""
        return self.place.file in asked and (self.stands_for is None or self.stands_for.file not in asked)

    def as_json(self) -> dict[str, Any]:
        return {
            **self.place.as_json(),
            "rule": self.rule,
            "severity": self.severity,
            "message": self.message,
            "help": self.help,
            "related": [{**p.as_json(), "message": m} for m, p in self.related],
            "fix": self.fix.as_json() if self.fix else None,
        }
