"""For people: one line each, or with the source around it."""

from __future__ import annotations

import json
import os

from gradmend.check.findings import Finding, Place


def concise(findings: list[Finding]) -> str:
    return "".join(f"{where(f)}: {f.rule} [{f.severity}] {f.message}\n" for f in findings)


def where(finding: Finding) -> str:
    cell = f":cell {finding.cell}" if finding.cell is not None else ""
    return f"{shown(finding.place.file)}{cell}:{finding.place.line}:{finding.place.column}"


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
    marks = [(finding.place, "^", "")]
    marks += [(p, "-", m) for m, p in finding.related if p.file == finding.place.file]
    lines += _excerpt(finding, sorted(marks, key=lambda m: (m[0].line, m[0].column)))
    for message, place in finding.related:
        if place.file != finding.place.file:
            lines.append(f"  {dim}={off} note: {shown(place.file)}:{place.line}: {message}")
    if finding.help:
        lines.append(f"  {dim}={off} help: {finding.help}")
    return "\n".join(lines) + "\n"


def _excerpt(finding: Finding, marks: list[tuple[Place, str, str]]) -> list[str]:
    source = _source(finding)
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
            lines.append(f"{place.line:{width}} | {text}")
            last = place.line
        end = place.end_column if place.end_line == place.line else len(text) + 1
        under = mark * max(1, min(end, len(text) + 1) - place.column)
        lines.append(f"{' ' * width} | {' ' * (place.column - 1)}{under} {word}".rstrip())
    return lines


def _source(finding: Finding) -> list[str]:
    try:
        with open(finding.place.file, encoding="utf-8", errors="replace") as handle:
            text = handle.read()
        if finding.cell is not None:
            cell = json.loads(text)["cells"][finding.cell - 1]["source"]
            text = "".join(cell) if isinstance(cell, list) else cell
        return text.split("\n")
    except (OSError, ValueError, KeyError, IndexError):
        return []
