"""For people: one line each, or with the source around it."""

from __future__ import annotations

import json
import os

from gradmend.check.findings import Finding, Place, printable
from gradmend.check.rewrite import lines_of, text_of


def concise(findings: list[Finding]) -> str:
    return "".join(f"{where(f)}: {f.rule} [{f.severity}] {f.message}\n" for f in findings)


def where(finding: Finding) -> str:
    return spot(finding.place) + f":{finding.place.column}"


def spot(place: Place) -> str:
    """File and line, with the cell of a notebook."""
    cell = f":cell {place.cell}" if place.cell is not None else ""
    return f"{printable(shown(place.file))}{cell}:{place.line}"


def shown(file: str) -> str:
    """Relative to where we are, if it lies below."""
    try:
        relative = os.path.relpath(file)
    except ValueError:
        return file
    return file if relative.startswith("..") else relative


def full(findings: list[Finding], colour: bool = False) -> str:
    return "\n".join(_one(f, colour) for f in findings)


def _one(finding: Finding, colour: bool) -> str:
    bold, tint, dim, off = (
        ("\033[1m", "\033[31m" if finding.severity == "error" else "\033[33m", "\033[36m", "\033[0m")
        if colour
        else ("",) * 4
    )
    lines = [
        f"{bold}{tint}{finding.severity}[{finding.rule}]{off}{bold}: {finding.message}{off}",
        f"  {dim}-->{off} {where(finding)}",
    ]
    own = (finding.place.file, finding.place.cell)
    marks = [(finding.place, "^", "")]
    marks += [(p, "-", m) for m, p in finding.related if (p.file, p.cell) == own]
    lines += _excerpt(_source(finding.place), sorted(marks, key=lambda m: (m[0].line, m[0].column)))
    for message, place in finding.related:
        if (place.file, place.cell) != own:
            lines.append(f"  {dim}={off} note: {spot(place)}: {message}")
    if finding.help:
        lines.append(f"  {dim}={off} help: {finding.help}")
    return "\n".join(lines) + "\n"


def _excerpt(source: list[str], marks: list[tuple[Place, str, str]]) -> list[str]:
    if not source:
        return []
    width = len(str(max(p.line for p, _, _ in marks)))
    lines = [f"{' ' * width} |"]
    last = 0
    for place, mark, word in marks:
        if not 0 < place.line <= len(source):
            continue
        text = source[place.line - 1].rstrip("\r\n")
        if place.line != last:
            if last and place.line > last + 1:
                lines.append("...")
            lines.append(f"{place.line:{width}} | {_visible(text)}")
            last = place.line
        end = place.end_column if place.end_line == place.line else len(text) + 1
        before, marked = text[: place.column - 1], text[place.column - 1 : end - 1]
        under = mark * max(1, len(_blank(marked)))
        lines.append(f"{' ' * width} | {_blank(before)}{under} {word}".rstrip())
    return lines


def _visible(text: str) -> str:
    """What moves the cursor is shown as a sign of the same width."""
    return (
        text if text.isprintable() else "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in text)
    )


def _blank(text: str) -> str:
    """As wide as the text is on a terminal: tabs stay, wide letters count twice."""
    if text.isascii():
        return "".join("\t" if c == "\t" else " " for c in text)
    from unicodedata import combining, east_asian_width

    return "".join(
        "\t" if c == "\t" else "" if combining(c) else "  " if east_asian_width(c) in "WF" else " "
        for c in text
    )


def _source(place: Place) -> list[str]:
    try:
        with open(place.file, "rb") as handle:
            source = handle.read()
        if place.cell is None:
            return lines_of(text_of(source) or "")
        from gradmend.check import notebooks

        content = json.loads(source.decode("utf-8-sig", "replace"))
        return lines_of(notebooks.source_of(notebooks.cells_of(content)[place.cell - 1]))
    except (OSError, ValueError, IndexError, AttributeError):
        return []
