"""Fixes applied to text."""

from __future__ import annotations

import io
import tokenize

from gradmend.check.findings import Finding, TextEdit


def fixed(text: str, findings: list[Finding], *, unsafe: bool) -> tuple[str, int]:
    """The text with every fix that may be applied, and how many were; of two that overlap the first wins."""
    lines = lines_of(text)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    edits: list[tuple[int, int, str]] = []
    count = 0
    for finding in findings:
        fix = finding.fix
        if fix is None or not (fix.safe or unsafe):
            continue
        mine = [
            (
                _offset(starts, e.line, e.column),
                _offset(starts, e.end_line, e.end_column),
                _newlines(e, lines),
            )
            for e in fix.edits
        ]
        if any((a < d and c < b) or a == c for a, b, _ in mine for c, d, _ in edits):
            continue
        edits += mine
        count += 1
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text, count


def lines_of(text: str) -> list[str]:
    """With their ends, as Python counts them: a form feed ends no line."""
    return io.StringIO(text, newline="").readlines()


def text_of(source: bytes) -> str | None:
    """By its coding cookie; None where that is none of Python's."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        return source.decode(encoding, "replace")
    except (SyntaxError, LookupError):
        return None


def _offset(starts: list[int], line: int, column: int) -> int:
    return starts[min(line, len(starts)) - 1] + column - 1


def _newlines(edit: TextEdit, lines: list[str]) -> str:
    """New lines end as the line that they stand at; one without an end, as the file's first."""
    if "\n" not in edit.text:
        return edit.text
    for line in lines[edit.line - 1 : edit.line] + lines[:1]:
        end = line[len(line.rstrip("\r\n")) :]
        if end:
            return edit.text.replace("\n", end)
    return edit.text
