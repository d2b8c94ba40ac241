"""A piece of source as a terminal shows it: tabs, wide characters and long lines, with the columns to mark."""

from __future__ import annotations

import linecache
import re
import unicodedata
from dataclasses import dataclass

from gradmend.model import Frame

TAB = 4
# What would steer a terminal, or turn the order of what follows; tabs and newlines stay.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_LINES = 6  # a longer expression is cut in the middle


@dataclass(frozen=True, slots=True)
class Marked:
    """One source line, expanded for display, and the part of it to underline."""

    number: int
    text: str
    start: int
    length: int


def harmless(text: str) -> str:
    """The same text with its control characters spelled out: a program's names and lines may hold any."""
    return _STEERING.sub(lambda found: ascii(found[0])[1:-1], text)


def source_line(file: str, number: int) -> str | None:
    try:
        lines = linecache.getlines(file)
    except (ValueError, OSError):  # not a name that a file can have
        return None
    return lines[number - 1].rstrip("\r\n") if 0 < number <= len(lines) else None


def marked(frame: Frame) -> list[Marked]:
    """The frame's lines with the running expression marked; empty where there is no source."""
    last = max(frame.line, frame.end_line or frame.line)
    if frame.col is None or frame.end_col is None:
        last = frame.line
    found = []
    for number in range(frame.line, last + 1):
        text = source_line(frame.file, number)
        if text is None:
            break
        body = len(text) - len(text.lstrip())
        start = _index(text, frame.col) if number == frame.line and frame.col is not None else body
        end = len(text.rstrip())
        if number == last and frame.end_col is not None and frame.col is not None:
            end = min(end, _index(text, frame.end_col))
        if start >= end:  # columns of another version of the file
            start, end = body, len(text.rstrip())
        at = width_of(text[:start])
        found.append(Marked(number, expand(text), at, max(1, width_of(text[:end]) - at)))
    if len(found) > _LINES:
        found = [*found[: _LINES - 2], found[-1]]
    return found


def _index(text: str, byte: int) -> int:
    """Python counts columns in bytes of UTF-8."""
    return len(text.encode("utf-8", "surrogatepass")[:byte].decode("utf-8", "ignore"))


def width_of(text: str) -> int:
    """Columns this text takes on a terminal, from the left margin on."""
    column = 0
    for char in text:
        column = (column // TAB + 1) * TAB if char == "\t" else column + _columns(char)
    return column


def _columns(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def expand(text: str) -> str:
    """Tabs to spaces; control characters, which could move the cursor, dropped."""
    out: list[str] = []
    column = 0
    for char in text:
        if char == "\t":
            step = TAB - column % TAB
            out.append(" " * step)
            column += step
        elif unicodedata.category(char) != "Cc" and not _STEERING.match(char):
            out.append(char)
            column += _columns(char)
    return "".join(out).rstrip()


def crop(line: Marked, room: int) -> Marked:
    """The part of a long line that holds its mark, with an ellipsis where it was cut."""
    if width_of(line.text) <= room or room < 8:
        return line
    start = 0
    if line.start + min(line.length, room // 2) > room - 1:
        start = max(0, line.start - room // 4)
    chars: list[str] = []
    column, begin = 0, None
    for char in line.text:
        if column >= start and column + _columns(char) <= start + room - 2:
            begin = column if begin is None else begin
            chars.append(char)
        column += _columns(char)
    begin = begin or 0
    lead = "…" if start else ""
    text = lead + "".join(chars) + ("…" if begin + width_of("".join(chars)) < column else "")
    at = line.start - begin + len(lead)
    return Marked(line.number, text, at, max(1, min(line.length, width_of(text) - at)))
