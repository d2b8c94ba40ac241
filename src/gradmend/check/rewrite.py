"""Fixes applied to text, and shown as a diff."""

from __future__ import annotations

import contextlib
import difflib
import errno
import io
import os
import tokenize

from gradmend.check.findings import Finding, TextEdit


def fixed(text: str, findings: list[Finding], *, unsafe: bool) -> tuple[str, int]:
    """The text with every fix that may be applied, and how many were; of two that overlap the first wins."""
    lines = text.splitlines(keepends=True)
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
            (_offset(starts, e.line, e.column), _offset(starts, e.end_line, e.end_column), _newlines(e, text))
            for e in fix.edits
        ]
        if any((a < d and c < b) or a == c for a, b, _ in mine for c, d, _ in edits):
            continue
        edits += mine
        count += 1
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text, count


def _offset(starts: list[int], line: int, column: int) -> int:
    return starts[min(line, len(starts)) - 1] + column - 1


def _newlines(edit: TextEdit, text: str) -> str:
    """Lines end as the file's do."""
    return edit.text.replace("\n", "\r\n") if "\r\n" in text else edit.text


def read(file: str) -> tuple[str, str]:
    """Text and encoding, line ends as they are."""
    with open(file, "rb") as handle:
        raw = handle.read()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
    return raw.decode(encoding), encoding


def write(file: str, text: str, encoding: str) -> None:
    """All of it or nothing, to the file that a link leads to. OSError where it may not be written."""
    file = os.path.realpath(file)
    if not os.access(file, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), file)
    part = f"{file}.gradmend-{os.getpid()}"
    try:
        with open(part, "wb") as handle:
            handle.write(text.encode(encoding))
        os.chmod(part, os.stat(file).st_mode)
        os.replace(part, file)
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(part)
        raise


def diff(file: str, before: str, after: str) -> str:
    name = file.replace(os.sep, "/")
    return "".join(
        difflib.unified_diff(
            before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
        )
    )
